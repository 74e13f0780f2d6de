// Records in memory: headers, planes that are zero, seeds. No I/O here.
#include "store/record.hpp"

#include <algorithm>
#include <cstring>

#include "store/crc32c.hpp"

namespace tidegs::store {
namespace {

constexpr char kMagic[8] = {'T', 'I', 'D', 'E', 'G', 'S', 'B', 'L'};
constexpr uint32_t kVersion = 1;

bool is_zero(const uint8_t* p, size_t n) {
    for (size_t at = 0; at < n; at += kPage) {
        uint64_t any = 0;
        for (size_t i = 0; i < kPage; i += 8) {
            uint64_t v;
            std::memcpy(&v, p + at + i, 8);
            any |= v;
        }
        if (any) return false;
    }
    return true;
}

int planes_of(const Request& r) { return r.scratch ? kPlanes : kRecordPlanes; }

}  // namespace

size_t payload_nbytes(const Layout& layout, const Request& r) {
    if (r.kind == kSeedKind) return seed_nbytes(layout);
    size_t n = 0;
    for (int p = 0; p < kPlanes; ++p)
        if (r.planes >> p & 1) n += layout.stored[p];
    return n;
}

void fill_header(const Layout& layout, const Request& r, uint8_t* page) {
    Header h{};
    std::memcpy(h.magic, kMagic, 8);
    h.version = kVersion;
    h.block = r.block;
    h.generation = r.generation;
    h.planes = r.planes;
    h.kind = r.kind;
    h.count = r.count;
    h.crc = r.crc;
    h.payload_nbytes = payload_nbytes(layout, r);
    h.header_crc = crc32c(0, &h, sizeof(Header) - 4);
    std::memcpy(page, &h, sizeof(Header));
    std::memset(page + sizeof(Header), 0, kPage - sizeof(Header));
}

int32_t check_header(const Layout& layout, const Request& r, const uint8_t* page) {
    Header h;
    std::memcpy(&h, page, sizeof(Header));
    if (std::memcmp(h.magic, kMagic, 8) != 0 || h.version != kVersion) return kBadMagic;
    if (h.header_crc != crc32c(0, &h, sizeof(Header) - 4)) return kBadHeader;
    const bool same = h.block == r.block && h.generation == r.generation && h.planes == r.planes && h.kind == r.kind &&
                      h.crc == r.crc && h.payload_nbytes == payload_nbytes(layout, r);
    return same ? 0 : kWrongRecord;
}

uint16_t nonzero_planes(const Layout& layout, const Request& r) {
    uint16_t bits = 0;
    for (int p = 0; p < planes_of(r); ++p)
        if ((r.planes >> p & 1) && layout.nbytes[p] && !is_zero(r.slot + layout.offset[p], layout.nbytes[p])) bits |= 1u << p;
    return bits;
}

void zero_missing(const Layout& layout, const Request& r) {
    for (int p = 0; p < planes_of(r); ++p)
        if (!(r.planes >> p & 1)) std::memset(r.slot + layout.offset[p], 0, layout.nbytes[p]);
}

void expand_seeds(const Layout& layout, const Request& r, const uint8_t* seeds) {
    const size_t capacity = layout.capacity, count = std::min<size_t>(std::max(r.count, 0), capacity);
    const auto* in = reinterpret_cast<const float*>(seeds);
    const uint8_t* rgb = seeds + 16 * capacity;
    auto* out = reinterpret_cast<float*>(r.slot + layout.offset[0]);
    std::memset(out, 0, layout.nbytes[0]);
    for (int k = 0; k < 3; ++k) {
        std::memcpy(out + k * capacity, in + k * capacity, 4 * count);
        std::memcpy(out + (7 + k) * capacity, in + 3 * capacity, 4 * count);
        for (size_t i = 0; i < count; ++i) out[(11 + k) * capacity + i] = layout.seed_sh0[rgb[k * capacity + i]];
    }
    std::fill_n(out + 3 * capacity, count, 1.0f);
    std::fill_n(out + 10 * capacity, count, layout.seed_opacity);
    for (int p = 1; p < planes_of(r); ++p) std::memset(r.slot + layout.offset[p], 0, layout.nbytes[p]);
}

}  // namespace tidegs::store
