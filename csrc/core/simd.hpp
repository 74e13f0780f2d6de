// Vectors of W floats, W fixed by the instruction set of the translation unit: 16 (AVX-512), 8 (AVX2), 4 (any other).
// Invariant: kernels are compiled with -ffp-contract=off and ask for fused operations by name, so the same expression
// gives the same bits wherever it is inlined (forward and backward must agree on which pixels a splat touches).
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tidegs {

#if defined(__AVX512F__)
constexpr int W = 16;
constexpr const char* ISA = "avx512";
#elif defined(__AVX2__)
constexpr int W = 8;
constexpr const char* ISA = "avx2";
#else
constexpr int W = 4;
constexpr const char* ISA = "portable";
#endif

typedef float vf __attribute__((vector_size(W * 4), aligned(W * 4)));
typedef int32_t vi __attribute__((vector_size(W * 4), aligned(W * 4)));
typedef uint32_t vu __attribute__((vector_size(W * 4), aligned(W * 4)));

inline vf set1(float x) { return x - vf{}; }
inline vi set1i(int32_t x) { return x - vi{}; }
inline vf load(const float* p) {
    vf v;
    std::memcpy(&v, p, sizeof v);
    return v;
}
inline vi loadi(const int32_t* p) {
    vi v;
    std::memcpy(&v, p, sizeof v);
    return v;
}
inline void store(float* p, vf v) { std::memcpy(p, &v, sizeof v); }
inline void storei(int32_t* p, vi v) { std::memcpy(p, &v, sizeof v); }
inline vi as_int(vf v) { return (vi)v; }
inline vf as_float(vi v) { return (vf)v; }
inline vf to_float(vi v) { return __builtin_convertvector(v, vf); }
inline vf abs(vf v) { return as_float(as_int(v) & 0x7fffffff); }

// 0, 1, ..., W - 1
inline vi iota() {
    vi v;
    for (int i = 0; i < W; ++i) v[i] = i;
    return v;
}

#if defined(__AVX512F__)

typedef __mmask16 vm;  // one bit a lane
inline vf fma(vf a, vf b, vf c) { return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
inline vf fnma(vf a, vf b, vf c) { return (vf)_mm512_fnmadd_ps((__m512)a, (__m512)b, (__m512)c); }
inline vf min(vf a, vf b) { return (vf)_mm512_min_ps((__m512)a, (__m512)b); }
inline vf max(vf a, vf b) { return (vf)_mm512_max_ps((__m512)a, (__m512)b); }
inline vf sqrt(vf a) { return (vf)_mm512_sqrt_ps((__m512)a); }
inline vf ceil(vf a) { return (vf)_mm512_roundscale_ps((__m512)a, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC); }
inline vm lt(vf a, vf b) { return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_LT_OQ); }
inline vm le(vf a, vf b) { return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_LE_OQ); }
inline vm lti(vi a, vi b) { return _mm512_cmplt_epi32_mask((__m512i)a, (__m512i)b); }
inline vm band(vm a, vm b) { return (vm)(a & b); }
inline vm bor(vm a, vm b) { return (vm)(a | b); }
inline vm andnot(vm a, vm b) { return (vm)(~a & b); }  // b without a
inline vf select(vm m, vf a, vf b) { return (vf)_mm512_mask_blend_ps(m, (__m512)b, (__m512)a); }
inline vi selecti(vm m, vi a, vi b) { return (vi)_mm512_mask_blend_epi32(m, (__m512i)b, (__m512i)a); }
inline vf keep(vm m, vf a) { return (vf)_mm512_maskz_mov_ps(m, (__m512)a); }  // 0 where not m
inline uint32_t bits(vm m) { return m; }
inline vm from_bits(uint32_t b) { return (vm)b; }
inline vf rcp(vf a) {  // within 2 units in the last place; rcp14 is specified to the bit, so all machines agree
    vf r = (vf)_mm512_rcp14_ps((__m512)a);
    return fma(r, fnma(a, r, set1(1.0f)), r);
}
inline uint32_t signs(vf v) { return _mm512_movepi32_mask((__m512i)v); }
inline __m128 quarters(vf v) {  // sum of the vector's four quarters
    const __m256 h = _mm256_add_ps(_mm512_castps512_ps256((__m512)v), _mm512_extractf32x8_ps((__m512)v, 1));
    return _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
}
inline vf load_rows(const float* p, size_t stride) {
    __m512 v = _mm512_castps128_ps512(_mm_loadu_ps(p));
    v = _mm512_insertf32x4(v, _mm_loadu_ps(p + stride), 1);
    v = _mm512_insertf32x4(v, _mm_loadu_ps(p + 2 * stride), 2);
    return (vf)_mm512_insertf32x4(v, _mm_loadu_ps(p + 3 * stride), 3);
}
inline void store_rows(float* p, size_t stride, vf v) {
    _mm_storeu_ps(p, _mm512_castps512_ps128((__m512)v));
    _mm_storeu_ps(p + stride, _mm512_extractf32x4_ps((__m512)v, 1));
    _mm_storeu_ps(p + 2 * stride, _mm512_extractf32x4_ps((__m512)v, 2));
    _mm_storeu_ps(p + 3 * stride, _mm512_extractf32x4_ps((__m512)v, 3));
}

#elif defined(__AVX2__)

typedef vi vm;  // all bits of a lane
inline vf fma(vf a, vf b, vf c) { return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
inline vf fnma(vf a, vf b, vf c) { return (vf)_mm256_fnmadd_ps((__m256)a, (__m256)b, (__m256)c); }
inline vf min(vf a, vf b) { return (vf)_mm256_min_ps((__m256)a, (__m256)b); }
inline vf max(vf a, vf b) { return (vf)_mm256_max_ps((__m256)a, (__m256)b); }
inline vf sqrt(vf a) { return (vf)_mm256_sqrt_ps((__m256)a); }
inline vf ceil(vf a) { return (vf)_mm256_ceil_ps((__m256)a); }
inline vm lt(vf a, vf b) { return a < b; }
inline vm le(vf a, vf b) { return a <= b; }
inline vm lti(vi a, vi b) { return a < b; }
inline vm band(vm a, vm b) { return a & b; }
inline vm bor(vm a, vm b) { return a | b; }
inline vm andnot(vm a, vm b) { return ~a & b; }
inline vf select(vm m, vf a, vf b) { return (vf)_mm256_blendv_ps((__m256)b, (__m256)a, (__m256)m); }
inline vi selecti(vm m, vi a, vi b) { return (vi)select(m, (vf)a, (vf)b); }
inline vf keep(vm m, vf a) { return as_float(m & as_int(a)); }
inline uint32_t bits(vm m) { return (uint32_t)_mm256_movemask_ps((__m256)m); }
inline vm from_bits(uint32_t b) {
    const vi lane = {1, 2, 4, 8, 16, 32, 64, 128};
    return (set1i((int32_t)b) & lane) == lane;
}
inline vf rcp(vf a) { return 1.0f / a; }
inline uint32_t signs(vf v) { return (uint32_t)_mm256_movemask_ps((__m256)v); }
inline __m128 quarters(vf v) { return _mm_add_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1)); }
inline vf load_rows(const float* p, size_t stride) {
    return (vf)_mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(p)), _mm_loadu_ps(p + stride), 1);
}
inline void store_rows(float* p, size_t stride, vf v) {
    _mm_storeu_ps(p, _mm256_castps256_ps128((__m256)v));
    _mm_storeu_ps(p + stride, _mm256_extractf128_ps((__m256)v, 1));
}

#else

typedef vi vm;
#if defined(__aarch64__)
inline vf fma(vf a, vf b, vf c) {
    for (int i = 0; i < W; ++i) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return c;
}
inline vf fnma(vf a, vf b, vf c) { return fma(-a, b, c); }
#else
inline vf fma(vf a, vf b, vf c) { return a * b + c; }
inline vf fnma(vf a, vf b, vf c) { return c - a * b; }
#endif
inline vm lt(vf a, vf b) { return a < b; }
inline vm le(vf a, vf b) { return a <= b; }
inline vm lti(vi a, vi b) { return a < b; }
inline vm band(vm a, vm b) { return a & b; }
inline vm bor(vm a, vm b) { return a | b; }
inline vm andnot(vm a, vm b) { return ~a & b; }
inline vi selecti(vm m, vi a, vi b) { return (m & a) | (~m & b); }
inline vf select(vm m, vf a, vf b) { return as_float(selecti(m, as_int(a), as_int(b))); }
inline vf keep(vm m, vf a) { return as_float(m & as_int(a)); }
inline vf rcp(vf a) { return 1.0f / a; }
#if defined(__SSE2__)
inline vf min(vf a, vf b) { return (vf)_mm_min_ps((__m128)a, (__m128)b); }
inline vf max(vf a, vf b) { return (vf)_mm_max_ps((__m128)a, (__m128)b); }
inline vf sqrt(vf a) { return (vf)_mm_sqrt_ps((__m128)a); }
inline uint32_t signs(vf v) { return (uint32_t)_mm_movemask_ps((__m128)v); }
#else
inline vf min(vf a, vf b) { return select(a < b, a, b); }
inline vf max(vf a, vf b) { return select(a > b, a, b); }
inline vf sqrt(vf a) {
    for (int i = 0; i < W; ++i) a[i] = __builtin_sqrtf(a[i]);
    return a;
}
inline uint32_t signs(vf v) {
    vu s = (vu)v >> 31;
    return s[0] | s[1] << 1 | s[2] << 2 | s[3] << 3;
}
#endif
inline vf ceil(vf a) {  // exact for all floats: those of 2^23 and more are whole already, and NaN stays NaN
    vf t = to_float(__builtin_convertvector(a, vi));
    t = t + keep(t < a, set1(1.0f));
    return select(abs(a) < set1(8388608.0f), t, a);
}
inline uint32_t bits(vm m) { return signs(as_float(m)); }
inline vm from_bits(uint32_t b) {
    const vi lane = {1, 2, 4, 8};
    return (set1i((int32_t)b) & lane) == lane;
}
inline vf quarters(vf v) { return v; }
inline vf load_rows(const float* p, size_t) { return load(p); }
inline void store_rows(float* p, size_t, vf v) { store(p, v); }

#endif

inline vm ge(vf a, vf b) { return le(b, a); }
inline vm gt(vf a, vf b) { return lt(b, a); }
inline bool any(vm m) { return bits(m) != 0; }
inline vm first(int n) { return from_bits(n >= W ? (1u << W) - 1 : n <= 0 ? 0u : (1u << n) - 1); }

// load_rows and store_rows, above: W / 4 rows of four floats, `stride` floats apart.

// Sums over the lanes of four vectors, in a fixed order.
inline void sum4(vf a, vf b, vf c, vf d, float* out) {
#if defined(__x86_64__)
    const __m128 qa = (__m128)quarters(a), qb = (__m128)quarters(b), qc = (__m128)quarters(c), qd = (__m128)quarters(d);
    const __m128 ab = _mm_add_ps(_mm_unpacklo_ps(qa, qb), _mm_unpackhi_ps(qa, qb));  // a02 b02 a13 b13
    const __m128 cd = _mm_add_ps(_mm_unpacklo_ps(qc, qd), _mm_unpackhi_ps(qc, qd));
    _mm_storeu_ps(out, _mm_add_ps(_mm_movelh_ps(ab, cd), _mm_movehl_ps(cd, ab)));
#else
    const vf v[4] = {a, b, c, d};
    for (int i = 0; i < 4; ++i) out[i] = (v[i][0] + v[i][2]) + (v[i][1] + v[i][3]);
#endif
}
inline float sum(vf v) {
    float out[4];
    sum4(v, v, v, v, out);
    return out[0];
}

inline vf dot3(vf ax, vf ay, vf az, vf bx, vf by, vf bz) { return fma(ax, bx, fma(ay, by, az * bz)); }

}  // namespace tidegs
