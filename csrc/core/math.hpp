// exp, log2 and the logistic function on vectors, with stated errors (minimax polynomials, found by Remez exchange).
#pragma once

#include "core/simd.hpp"

namespace tidegs {

constexpr float LOG2E = 1.44269504088896341f;
constexpr float LN2 = 0.693147180559945309f;

// 2^x for -126 <= x <= 127, relative error under 2e-7. Outside of it the bits are meaningless: mask or clamp.
inline vf exp2_raw(vf x) {
    const vf magic = set1(12582912.0f);  // 1.5 * 2^23: adding it rounds to the nearest whole number
    const vf t = x + magic;
    const vf f = x - (t - magic);
    vf p = set1(1.327647199258419e-3f);
    p = fma(p, f, set1(9.675541334454401e-3f));
    p = fma(p, f, set1(5.550713273497929e-2f));
    p = fma(p, f, set1(2.402211972383998e-1f));
    p = fma(p, f, set1(6.931469670647603e-1f));
    p = fma(p, f, set1(1.0000000716546849f));
    return as_float(as_int(p) + (as_int(t) << 23));
}

// e^x, clamped so that the result is finite and not denormal; relative error under 1e-6 (|x| <= 1: 3e-7). NaN gives NaN.
inline vf exp(vf x) {
    const vf c = min(set1(88.0f), max(set1(-87.0f), x));
    const vf magic = set1(12582912.0f);
    const vf t = fma(c, set1(LOG2E), magic);
    const vf n = t - magic;
    vf f = fnma(n, set1(0.693359375f), c);  // ln 2 in two parts (Cody & Waite 1980)
    f = fnma(n, set1(-2.12194440e-4f), f);
    const vf y = f * LOG2E;
    vf p = set1(1.5345812009089318e-4f);
    p = fma(p, y, set1(1.3399931219164655e-3f));
    p = fma(p, y, set1(9.618488957089626e-3f));
    p = fma(p, y, set1(5.550328776965264e-2f));
    p = fma(p, y, set1(2.4022646890634397e-1f));
    p = fma(p, y, set1(6.931472057372677e-1f));
    p = fma(p, y, set1(1.0000000005541665f));
    const vf r = as_float(as_int(p) + (as_int(t) << 23));
    return select(le(x, x), r, x);
}

// log2 x for normal positive x, absolute error under 4e-7 where |log2 x| < 8.
inline vf log2(vf x) {
    const vi b = as_int(x) - 0x3f3504f3;  // sqrt(1/2)
    const vf e = to_float(b >> 23);
    const vf t = as_float((b & 0x007fffff) + 0x3f3504f3) - 1.0f;
    vf q = set1(-0.11297489129627128f);
    q = fma(q, t, set1(0.18782670097300577f));
    q = fma(q, t, set1(-0.19061264754242216f));
    q = fma(q, t, set1(0.2042960156810188f));
    q = fma(q, t, set1(-0.23963658301231341f));
    q = fma(q, t, set1(0.2885852710424542f));
    q = fma(q, t, set1(-0.3606964244486952f));
    q = fma(q, t, set1(0.4808979006360929f));
    q = fma(q, t, set1(-0.7213473519985015f));
    q = fma(q, t, set1(1.4426950418502178f));
    return fma(q, t, e);
}

// 1 / (1 + e^-x)
inline vf sigmoid(vf x) { return rcp(1.0f + exp(-x)); }

}  // namespace tidegs
