// One Adam update of W values of a plane (Kingma & Ba 2015, as torch.optim.Adam rounds it), where a mask says so.
#pragma once

#include "core/simd.hpp"
#include "raster/types.hpp"

namespace tidegs {

inline void adam_update(const Adam& a, float lr, vm rows, vf grad, float* param, float* moment1, float* moment2) {
    const vf p = load(param), m0 = load(moment1), v0 = load(moment2);
    const vf m = fma(grad - m0, set1(1.0f - a.beta1), m0);
    const vf v = fma(grad * grad, set1(1.0f - a.beta2), v0 * a.beta2);
    const vf step = lr * m / fma(sqrt(v), set1(a.inv_sqrt_bias2), set1(a.eps));
    store(param, select(rows, p - step, p));
    store(moment1, select(rows, m, m0));
    store(moment2, select(rows, v, v0));
}

}  // namespace tidegs
