// See curve.hpp. Points go through the curve in groups, a lane of a vector each, with no branches.
#include "store/curve.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace tidegs::store {
namespace {

constexpr int64_t kLanes = 8;
typedef uint32_t Lanes __attribute__((vector_size(4 * kLanes)));

inline uint64_t spread(uint64_t v) {  // bit i to bit 3 i
    v = (v | v << 32) & 0x001F00000000FFFFull;
    v = (v | v << 16) & 0x001F0000FF0000FFull;
    v = (v | v << 8) & 0x100F00F00F00F00Full;
    v = (v | v << 4) & 0x10C30C30C30C30C3ull;
    return (v | v << 2) & 0x1249249249249249ull;
}

TIDEGS_WIDE void place(const uint32_t* px, const uint32_t* py, const uint32_t* pz, int bits, uint64_t* key) {
    Lanes x, y, z, turn = {};
    std::memcpy(&x, px, sizeof x);
    std::memcpy(&y, py, sizeof y);
    std::memcpy(&z, pz, sizeof z);
    for (int b = bits - 1; b > 0; --b) {
        const uint32_t low = (1u << b) - 1;
        x ^= -(x >> b & 1) & low;  // all ones where the bit is set
        Lanes set = -(y >> b & 1);
        Lanes swapped = (x ^ y) & ~set & low;
        x ^= (set & low) | swapped;
        y ^= swapped;
        set = -(z >> b & 1);
        swapped = (x ^ z) & ~set & low;
        x ^= (set & low) | swapped;
        z ^= swapped;
    }
    y ^= x;
    z ^= y;
    for (int b = bits - 1; b > 0; --b) turn ^= -(z >> b & 1) & ((1u << b) - 1);
    x ^= turn;
    y ^= turn;
    z ^= turn;
    for (int64_t i = 0; i < kLanes; ++i) key[i] = spread(x[i]) << 2 | spread(y[i]) << 1 | spread(z[i]);
}

}  // namespace

void hilbert(const uint32_t* x, const uint32_t* y, const uint32_t* z, int64_t n, int bits, uint64_t* key) {
    int64_t at = 0;
    for (; at + kLanes <= n; at += kLanes) place(x + at, y + at, z + at, bits, key + at);
    if (at == n) return;
    uint32_t part[3][kLanes] = {};
    uint64_t found[kLanes];
    std::copy_n(x + at, n - at, part[0]);
    std::copy_n(y + at, n - at, part[1]);
    std::copy_n(z + at, n - at, part[2]);
    place(part[0], part[1], part[2], bits, found);
    std::copy_n(found, n - at, key + at);
}

std::vector<uint32_t> order_of(const uint64_t* key, int64_t n) {
    constexpr int kDigit = 11, kValues = 1 << kDigit, kTop = 3 * kDigit, kIndex = 64 - kTop;
    std::vector<uint32_t> order(n);
    uint64_t differ = 0;
    for (int64_t i = 0; i < n; ++i) differ |= key[i] ^ key[0];
    if (differ == 0 || n >> kIndex) {  // all the same, or too many for what follows
        std::iota(order.begin(), order.end(), 0u);
        std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return key[a] < key[b]; });
        return order;
    }
    int used = 64;  // bits that differ somewhere
    while (!(differ >> (used - 1))) --used;
    const int shift = std::max(0, used - kTop);
    const uint64_t mask = (1ull << kTop) - 1;
    std::vector<uint64_t> item(n), other(n);  // the first bits that differ, and where they came from
    for (int64_t i = 0; i < n; ++i) item[i] = (key[i] >> shift & mask) << kIndex | static_cast<uint64_t>(i);
    for (int at = kIndex; at < 64; at += kDigit) {
        std::vector<int64_t> start(kValues + 1, 0);
        for (const uint64_t v : item) ++start[(v >> at & (kValues - 1)) + 1];
        std::partial_sum(start.begin(), start.end(), start.begin());
        for (const uint64_t v : item) other[start[v >> at & (kValues - 1)]++] = v;
        item.swap(other);
    }
    for (int64_t i = 0; i < n; ++i) order[i] = static_cast<uint32_t>(item[i] & ((1ull << kIndex) - 1));
    if (shift == 0) return order;
    for (int64_t first = 0, i = 1; i <= n; ++i) {  // the rest of the bits decides among few
        if (i < n && item[i] >> kIndex == item[first] >> kIndex) continue;
        if (i - first > 1)
            std::stable_sort(order.begin() + first, order.begin() + i,
                             [&](uint32_t a, uint32_t b) { return key[a] < key[b]; });
        first = i;
    }
    return order;
}

}  // namespace tidegs::store
