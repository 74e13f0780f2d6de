// Front-to-back blending of one tile (Kerbl et al. 2023, as gsplat's rasterize_to_pixels does it).
#pragma once

#include "raster/order.hpp"
#include "raster/tile.hpp"

namespace tidegs {

// What backward needs of a tile, in the order of planes.
struct alignas(64) TileState {
    float T[PIXELS];       // transmittance behind the last splat that counted
    int32_t stop[PIXELS];  // the visit at which the pixel had enough; no later one counts
    int32_t visits;        // looked at before all pixels had enough
};

struct alignas(64) TileColor {
    float r[PIXELS], g[PIXELS], b[PIXELS], depth[PIXELS];
};

// The visits' masks are left with the groups to which they added. Pixels beyond the image's edge count as finished.
template <bool DEPTH>
inline void tile_forward(const Splat* splats, Visit* visits, int n, int x0, int y0, int width, int height, TileState& out,
                         TileColor& color) {
    const TilePixels& px = TilePixels::get();
    uint64_t alive = 0;
    const vf edge_x = set1((float)(width - x0)), edge_y = set1((float)(height - y0));
    for (int i = 0; i < PIXELS; i += W) {
        const vm in = band(lt(load(px.x + i), edge_x), lt(load(px.y + i), edge_y));
        store(out.T + i, select(in, set1(1.0f), set1(-1.0f)));  // a finished pixel's T is kept, negated
        storei(out.stop + i, selecti(in, set1i(n), set1i(0)));
        store(color.r + i, vf{}), store(color.g + i, vf{}), store(color.b + i, vf{});
        if (DEPTH) store(color.depth + i, vf{});
        if (any(in)) alive |= uint64_t(1) << (i / 4);
    }
    int v = 0;
    for (; v < n && alive; ++v) {
        const Splat& s = splats[visits[v].splat];
        if (v + 4 < n) __builtin_prefetch(&splats[visits[v + 4].splat]);
        const Local local(s, x0, y0);
        uint64_t added = 0;
        for (uint64_t m = local.groups & alive; m; m &= m - 1) {
            const int bit = __builtin_ctzll(m), at = 4 * bit;
            const vf p = log2_alpha(s, load(px.x + at) - local.mx, load(px.y + at) - local.my);
            const vm seen = counts(s, p);
            if (!any(seen)) continue;
            const vf T = load(out.T + at);
            const vf alpha = keep(seen, min(set1(ALPHA_MAX), exp2_raw(p)));
            const vf next = fnma(T, alpha, T);
            const vm on = gt(next, set1(T_MIN));  // finished pixels have T < 0
            const vf weight = keep(on, alpha * T);
            const vm stops = andnot(on, band(seen, gt(T, vf{})));
            store(color.r + at, fma(weight, set1(s.r), load(color.r + at)));
            store(color.g + at, fma(weight, set1(s.g), load(color.g + at)));
            store(color.b + at, fma(weight, set1(s.bl), load(color.b + at)));
            if (DEPTH) store(color.depth + at, fma(weight, set1(s.depth), load(color.depth + at)));
            added |= uint64_t(any(band(on, seen))) << bit;
            vf rest = select(on, next, T);
            if (any(stops)) {
                rest = select(stops, -T, rest);
                storei(out.stop + at, selecti(stops, set1i(v), loadi(out.stop + at)));
                if (signs(rest) == bits(first(W))) alive &= ~(uint64_t(1) << bit);
            }
            store(out.T + at, rest);
        }
        visits[v].groups = added;
    }
    out.visits = v;
    for (int i = 0; i < PIXELS; i += W) store(out.T + i, abs(load(out.T + i)));
}

// Writes the tile's pixels into the planes of the image.
template <bool DEPTH>
inline void tile_write(const TileState& tile, const TileColor& color, const float* background, int x0, int y0, int width,
                       int height, const Image& image) {
    const size_t plane = (size_t)width * height;
    const int w = std::min(TILE, width - x0), h = std::min(TILE, height - y0);
    for (int y = 0; y < h; ++y) {
        const size_t to = (size_t)(y0 + y) * width + x0;
        for (int x = 0; x < w; ++x) {
            const int at = TilePixels::index(x, y);
            const float T = tile.T[at];
            image.rgb[to + x] = color.r[at] + T * background[0];
            image.rgb[plane + to + x] = color.g[at] + T * background[1];
            image.rgb[2 * plane + to + x] = color.b[at] + T * background[2];
            image.alpha[to + x] = 1.0f - T;
            if (DEPTH) image.depth[to + x] = color.depth[at];
        }
    }
}

}  // namespace tidegs
