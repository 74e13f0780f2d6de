// CRC32C in hardware where there is any, chosen once at run time; every implementation gives the same value.
// The hardware instruction has a latency of three cycles, so three streams are run side by side and joined by
// multiplying with x^(8 * bytes) in GF(2), a linear map kept as four tables of 256.
#include "store/crc32c.hpp"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__aarch64__)
#include <arm_acle.h>
#include <sys/auxv.h>
#endif

namespace tidegs::store {
namespace {

constexpr uint32_t kPolynomial = 0x82F63B78u;
constexpr size_t kLong = 4096, kShort = 256;  // bytes of one of three streams

using Tables8 = std::array<std::array<uint32_t, 256>, 8>;

// tables[j][b]: the CRC register after byte b and j zero bytes ("slicing by 8").
Tables8 slicing_tables() {
    Tables8 t{};
    for (uint32_t b = 0; b < 256; ++b) {
        uint32_t c = b;
        for (int bit = 0; bit < 8; ++bit) c = (c >> 1) ^ ((c & 1) ? kPolynomial : 0);
        t[0][b] = c;
    }
    for (size_t j = 1; j < 8; ++j)
        for (uint32_t b = 0; b < 256; ++b) t[j][b] = (t[j - 1][b] >> 8) ^ t[0][t[j - 1][b] & 255];
    return t;
}

const Tables8 kTables = slicing_tables();

uint32_t software(uint32_t c, const uint8_t* p, size_t n) {
    const Tables8& t = kTables;
    for (; n >= 8; n -= 8, p += 8) {
        uint32_t lo, hi;
        std::memcpy(&lo, p, 4);
        std::memcpy(&hi, p + 4, 4);
        lo ^= c;
        c = t[7][lo & 255] ^ t[6][lo >> 8 & 255] ^ t[5][lo >> 16 & 255] ^ t[4][lo >> 24] ^ t[3][hi & 255] ^
            t[2][hi >> 8 & 255] ^ t[1][hi >> 16 & 255] ^ t[0][hi >> 24];
    }
    for (; n; --n, ++p) c = (c >> 8) ^ t[0][(c ^ *p) & 255];
    return c;
}

#if defined(__x86_64__) || defined(__aarch64__)
// The linear map "append n zero bytes", by repeated stepping of one basis vector at a time.
struct Shift {
    uint32_t t[4][256];

    explicit Shift(size_t n) {
        uint32_t basis[32];
        for (int i = 0; i < 32; ++i) {
            uint32_t c = 1u << i;
            for (size_t k = 0; k < n; ++k) c = (c >> 8) ^ kTables[0][c & 255];
            basis[i] = c;
        }
        for (int j = 0; j < 4; ++j)
            for (uint32_t b = 0; b < 256; ++b) {
                uint32_t c = 0;
                for (int bit = 0; bit < 8; ++bit)
                    if (b >> bit & 1) c ^= basis[8 * j + bit];
                t[j][b] = c;
            }
    }
    uint32_t operator()(uint32_t c) const {
        return t[0][c & 255] ^ t[1][c >> 8 & 255] ^ t[2][c >> 16 & 255] ^ t[3][c >> 24];
    }
};

const Shift kShiftLong(kLong), kShiftShort(kShort);
#endif

#if defined(__x86_64__)
#define TIDEGS_CRC_TARGET __attribute__((target("sse4.2")))
#define TIDEGS_CRC8(c, v) static_cast<uint32_t>(_mm_crc32_u64(c, v))
#define TIDEGS_CRC1(c, v) _mm_crc32_u8(c, v)
#elif defined(__aarch64__)
#define TIDEGS_CRC_TARGET __attribute__((target("+crc")))
#define TIDEGS_CRC8(c, v) __crc32cd(c, v)
#define TIDEGS_CRC1(c, v) __crc32cb(c, v)
#endif

#if defined(TIDEGS_CRC_TARGET)
TIDEGS_CRC_TARGET inline uint64_t load8(const uint8_t* p) {
    uint64_t v;
    std::memcpy(&v, p, 8);
    return v;
}

TIDEGS_CRC_TARGET uint32_t hardware(uint32_t c0, const uint8_t* p, size_t n) {
    const auto triples = [&](size_t stream, const Shift& shift) TIDEGS_CRC_TARGET {
        for (; n >= 3 * stream; n -= 3 * stream, p += 3 * stream) {
            uint32_t c1 = 0, c2 = 0;
            for (size_t i = 0; i < stream; i += 8) {
                c0 = TIDEGS_CRC8(c0, load8(p + i));
                c1 = TIDEGS_CRC8(c1, load8(p + stream + i));
                c2 = TIDEGS_CRC8(c2, load8(p + 2 * stream + i));
            }
            c0 = shift(shift(c0) ^ c1) ^ c2;
        }
    };
    triples(kLong, kShiftLong);
    triples(kShort, kShiftShort);
    for (; n >= 8; n -= 8, p += 8) c0 = TIDEGS_CRC8(c0, load8(p));
    for (; n; --n, ++p) c0 = TIDEGS_CRC1(c0, *p);
    return c0;
}
#endif

bool has_hardware() {
#if defined(__x86_64__)
    return __builtin_cpu_supports("sse4.2");
#elif defined(__aarch64__)
    return getauxval(AT_HWCAP) & HWCAP_CRC32;
#else
    return false;
#endif
}

const bool kHardware = has_hardware();

}  // namespace

uint32_t crc32c(uint32_t crc, const void* data, size_t n) {
    const auto* p = static_cast<const uint8_t*>(data);
#if defined(TIDEGS_CRC_TARGET)
    if (kHardware) return ~hardware(~crc, p, n);
#endif
    return ~software(~crc, p, n);
}

const char* crc32c_name() {
#if defined(__x86_64__)
    return kHardware ? "sse4.2" : "software";
#else
    return kHardware ? "arm-crc" : "software";
#endif
}

uint32_t crc32c_software(uint32_t crc, const void* data, size_t n) {
    return ~software(~crc, static_cast<const uint8_t*>(data), n);
}

}  // namespace tidegs::store
