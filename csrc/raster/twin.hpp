// A plain scalar twin of the pixel stage, one pixel and one splat after the other, as the equations read: what benchmarks
// compare with, and a second opinion for tests. It uses the lists that the rasterizer made of the last image.
#pragma once

#include <cmath>

#include "raster/pass.hpp"

namespace tidegs {

struct TwinPixel {
    float T = 1, rgb[3] = {0, 0, 0};
    int contributors = 0;
};

inline float twin_alpha(const Splat& s, float dx, float dy) {
    const float sigma = (s.a * dx * dx + s.c * dy * dy + s.b * dx * dy) * LN2;
    if (sigma < 0) return 0;
    const float alpha = std::min(ALPHA_MAX, std::exp2(s.lo) * std::exp(-sigma));
    return alpha < ALPHA_MIN ? 0 : alpha;
}

// Renders the image [3, height, width] and differentiates it by `grad` of the same shape: sums (of Partial, ten floats) for
// each splat, added to `sums`. Returns how many pixels the splats added to.
inline int64_t twin(const Rasterizer& raster, const Camera& cam, float* image, const float* grad, float* sums) {
    const size_t plane = (size_t)cam.width * cam.height;
    int64_t contributions = 0;
    std::vector<int> order;
    for (int tile = 0; tile < raster.grid().tiles(); ++tile) {
        const auto visits = raster.visits_of(tile);
        const int x0 = raster.grid().x0(tile), y0 = raster.grid().y0(tile);
        for (int y = y0; y < std::min(y0 + TILE, cam.height); ++y)
            for (int x = x0; x < std::min(x0 + TILE, cam.width); ++x) {
                TwinPixel p;
                order.clear();
                for (const Visit* v = visits.first; v != visits.second; ++v) {
                    const Splat& s = raster.splat(v->splat);
                    const float alpha = twin_alpha(s, x + 0.5f - s.mx, y + 0.5f - s.my);
                    if (alpha == 0) continue;
                    const float next = p.T * (1 - alpha);
                    if (next <= T_MIN) break;
                    const float rgb[3] = {s.r, s.g, s.bl};
                    for (int c = 0; c < 3; ++c) p.rgb[c] += alpha * p.T * rgb[c];
                    p.T = next;
                    order.push_back((int)(v - visits.first));
                }
                contributions += (int64_t)order.size();
                const size_t at = (size_t)y * cam.width + x;
                float d[3], behind = 0;
                for (int c = 0; c < 3; ++c) {
                    image[c * plane + at] = p.rgb[c] + p.T * cam.background[c];
                    d[c] = grad[c * plane + at];
                    behind += d[c] * cam.background[c];
                }
                float T = p.T;
                for (size_t i = order.size(); i-- > 0;) {
                    const uint32_t id = visits.first[order[i]].splat;
                    const Splat& s = raster.splat(id);
                    const float dx = x + 0.5f - s.mx, dy = y + 0.5f - s.my, alpha = twin_alpha(s, dx, dy);
                    T /= 1 - alpha;
                    const float more = d[0] * s.r + d[1] * s.g + d[2] * s.bl - behind;
                    behind += alpha * more;
                    const float ds = alpha < ALPHA_MAX ? -alpha * T * more : 0;
                    const float add[9] = {ds, ds * dx, ds * dy, ds * dx * dx, ds * dx * dy, ds * dy * dy,
                                          alpha * T * d[0], alpha * T * d[1], alpha * T * d[2]};
                    for (int k = 0; k < 9; ++k) sums[(size_t)id * PARTIALS + k] += add[k];
                }
            }
    }
    return contributions;
}

}  // namespace tidegs
