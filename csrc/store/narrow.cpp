#include "store/narrow.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace tidegs::store {
namespace {

constexpr uint32_t kInf = 0x7f800000;

uint32_t bits_of(float x) {
    uint32_t b;
    std::memcpy(&b, &x, 4);
    return b;
}

float float_of(uint32_t b) {
    float x;
    std::memcpy(&x, &b, 4);
    return x;
}

// Each rounds to the nearest, ties to even.
uint16_t bfloat_of(float x) {
    const uint32_t sign = bits_of(x) >> 16 & 0x8000, b = bits_of(x) & 0x7fffffff;
    uint32_t h = (b + 0x7fff + (b >> 16 & 1)) >> 16;
    h = b > kInf ? 0x7fc0 : h;
    h |= static_cast<uint32_t>((h == 0) & (b != 0));
    return static_cast<uint16_t>(sign | h);
}

uint16_t half_of(float x) {
    const uint32_t sign = bits_of(x) >> 16 & 0x8000, b = bits_of(x) & 0x7fffffff;
    const uint32_t normal = ((b + 0xfff + (b >> 13 & 1)) >> 13) - (112u << 10);
    const uint32_t small = bits_of(float_of(b) + 0.5f) - bits_of(0.5f);  // an ulp of 0.5 is the least half
    uint32_t h = b < bits_of(0x1p-14f) ? small : normal;
    h = b >= kInf ? (b > kInf ? 0x7e00u : 0x7c00u) : h;
    h |= static_cast<uint32_t>((h == 0) & (b != 0));
    return static_cast<uint16_t>(sign | h);
}

float of_half(uint16_t h) {
    const uint32_t b = bits_of(float_of((h & 0x7fffu) << 13) * 0x1p112f);
    return float_of((h & 0x8000u) << 16 | ((h & 0x7c00u) == 0x7c00u ? b | kInf : b));
}

// The power of two that, divided by, rounds the greatest finite value into [2^14, 2^15): so what was narrowed once is
// narrowed again to the same bits.
float scale_of(const float* x, size_t n) {
    uint32_t most = 0;
    for (size_t i = 0; i < n; ++i) {
        const uint32_t b = bits_of(x[i]) & 0x7fffffff;
        most = std::max(most, b < kInf ? b : 0u);
    }
    return std::ldexp(1.0f, std::clamp(static_cast<int>((most + 0x1000) >> 23) - 127 - 14, -120, 120));
}

}  // namespace

void narrow_plane(const Layout& layout, int plane, const uint8_t* slot, uint8_t* out) {
    const size_t rows = layout.capacity, components = layout.components[plane];
    const auto* in = reinterpret_cast<const float*>(slot + layout.offset[plane]);
    auto* values = reinterpret_cast<uint16_t*>(out);
    auto* scales = reinterpret_cast<float*>(values + components * rows);
    for (size_t k = 0; k < components; ++k, in += rows, values += rows) {
        if (layout.dtype == kBfloat16) {
            for (size_t i = 0; i < rows; ++i) values[i] = bfloat_of(in[i]);
            continue;
        }
        scales[k] = scale_of(in, rows);
        const float inverse = 1.0f / scales[k];
        for (size_t i = 0; i < rows; ++i) values[i] = half_of(in[i] * inverse);
    }
    const size_t used = components * (2 * rows + (layout.dtype == kFloat16 ? 4 : 0));
    std::memset(out + used, 0, layout.stored[plane] - used);
}

void widen_plane(const Layout& layout, int plane, const uint8_t* stored, uint8_t* slot) {
    const size_t rows = layout.capacity, components = layout.components[plane];
    auto* out = reinterpret_cast<float*>(slot + layout.offset[plane]);
    const auto* values = reinterpret_cast<const uint16_t*>(stored);
    const auto* scales = reinterpret_cast<const float*>(values + components * rows);
    for (size_t k = 0; k < components; ++k, out += rows, values += rows)
        for (size_t i = 0; i < rows; ++i)
            out[i] = layout.dtype == kBfloat16 ? float_of(static_cast<uint32_t>(values[i]) << 16)
                                               : of_half(values[i]) * scales[k];
    const size_t used = 4 * components * rows;
    std::memset(slot + layout.offset[plane] + used, 0, layout.nbytes[plane] - used);
}

}  // namespace tidegs::store
