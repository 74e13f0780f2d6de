// Places along the Hilbert curve, and the order that they give.
#pragma once

#include <cstdint>
#include <vector>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define TIDEGS_WIDE __attribute__((target_clones("avx2", "default")))
#else
#define TIDEGS_WIDE
#endif

namespace tidegs::store {

constexpr int kBits = 20;  // of a key, for each axis

// Keys of cells (uint32 x[n], y[n], z[n], of `bits` bits each). Skilling, "Programming the Hilbert curve",
// 2004. Neighbours on the curve touch in space, which Morton order does not give. The first 3 b bits are those of the
// cell's coordinates cut to b bits.
void hilbert(const uint32_t* x, const uint32_t* y, const uint32_t* z, int64_t n, int bits, uint64_t* key);

// The stable order of n < 2^32 keys.
std::vector<uint32_t> order_of(const uint64_t* key, int64_t n);

}  // namespace tidegs::store
