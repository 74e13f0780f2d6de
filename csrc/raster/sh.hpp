// Real spherical harmonics up to degree 3 in gsplat's order and signs (Sloan, JCGT 2013), and their gradients.
#pragma once

#include "core/math.hpp"

namespace tidegs {

constexpr float SH_C0 = 0.2820947917738781f;

struct Direction {
    vf x, y, z, inv_norm;  // unit vector from the camera to the mean
};

inline Direction direction(vf x, vf y, vf z) {
    const vf n2 = dot3(x, y, z, x, y, z);
    const vf inv = keep(gt(n2, vf{}), 1.0f / sqrt(n2));
    return {x * inv, y * inv, z * inv, inv};
}

// Y[k] for k in [1, (degree + 1)^2)
inline void sh_basis(int degree, const Direction& d, vf* Y) {
    if (degree < 1) return;
    const vf x = d.x, y = d.y, z = d.z;
    Y[1] = -0.48860251190292f * y, Y[2] = 0.48860251190292f * z, Y[3] = -0.48860251190292f * x;
    if (degree < 2) return;
    const vf zz = z * z, c1 = x * x - y * y, s1 = 2.0f * x * y;
    Y[4] = 0.5462742152960395f * s1, Y[5] = -1.092548430592079f * y * z;
    Y[6] = fma(set1(0.9461746957575601f), zz, set1(-0.3153915652525201f));
    Y[7] = -1.092548430592079f * x * z, Y[8] = 0.5462742152960395f * c1;
    if (degree < 3) return;
    const vf t = fma(set1(-2.285228997322329f), zz, set1(0.4570457994644658f));
    Y[9] = -0.5900435899266435f * (x * s1 + y * c1), Y[10] = 1.445305721320277f * z * s1, Y[11] = t * y;
    Y[12] = z * fma(set1(1.865881662950577f), zz, set1(-1.119528997770346f));
    Y[13] = t * x, Y[14] = 1.445305721320277f * z * c1, Y[15] = -0.5900435899266435f * (x * c1 - y * s1);
}

// dL/d(direction before normalisation) from w[k] = dL/dY[k], k in [1, (degree + 1)^2)
inline void sh_direction_grad(int degree, const Direction& d, const vf* w, vf& gx, vf& gy, vf& gz) {
    gx = gy = gz = vf{};
    if (degree < 1) return;
    const vf x = d.x, y = d.y, z = d.z;
    gx = -0.48860251190292f * w[3], gy = -0.48860251190292f * w[1], gz = 0.48860251190292f * w[2];
    if (degree >= 2) {
        const float a = 1.092548430592079f;
        gx += a * (y * w[4] - z * w[7] + x * w[8]);
        gy += a * (x * w[4] - z * w[5] - y * w[8]);
        gz += 1.8923493915151202f * z * w[6] - a * (y * w[5] + x * w[7]);
    }
    if (degree >= 3) {
        const vf zz = z * z, c1 = x * x - y * y, s1 = 2.0f * x * y;
        const vf t = fma(set1(-2.285228997322329f), zz, set1(0.4570457994644658f));
        const float a = 1.7701307697799305f, b = 1.445305721320277f;
        const vf u = 4.570457994644658f * z;
        gx += t * w[13] - a * (s1 * w[9] + c1 * w[15]) + 2.0f * b * z * (y * w[10] + x * w[14]);
        gy += t * w[11] - a * (c1 * w[9] - s1 * w[15]) + 2.0f * b * z * (x * w[10] - y * w[14]);
        gz += b * (s1 * w[10] + c1 * w[14]) - u * (y * w[11] + x * w[13]);
        gz += fma(set1(5.597644988851731f), zz, set1(-1.119528997770346f)) * w[12];
    }
    const vf along = dot3(gx, gy, gz, x, y, z);
    gx = fnma(along, x, gx) * d.inv_norm, gy = fnma(along, y, gy) * d.inv_norm, gz = fnma(along, z, gz) * d.inv_norm;
}

}  // namespace tidegs
