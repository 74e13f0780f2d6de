// Back-to-front differentiation of one tile: partial gradients of each splat, summed over the tile's pixels.
#pragma once

#include "raster/tile_forward.hpp"

namespace tidegs {

// Sums over pixels, with s = dL/dsigma and d = pixel - mean. The carry plane of a slot holds these components.
struct alignas(16) Partial {
    float s, sx, sy, sxx, sxy, syy, r, g, b, depth, abs_x, abs_y;
};
constexpr int PARTIALS = 12;

struct alignas(64) TileGrad {
    float r[PIXELS], g[PIXELS], b[PIXELS], depth[PIXELS];
    float behind[PIXELS];  // dL/d(what lies behind the visit at hand), weighted
    float T[PIXELS];
};

template <bool DEPTH>
inline void tile_read(const TileState& tile, const float* background, int x0, int y0, int width, int height,
                      const ImageGrad& grad, TileGrad& out) {
    const size_t plane = (size_t)width * height;
    const int w = std::min(TILE, width - x0), h = std::min(TILE, height - y0);
    if (w < TILE || h < TILE) std::memset(&out, 0, sizeof out);
    for (int y = 0; y < h; ++y) {
        const size_t from = (size_t)(y0 + y) * width + x0;
        for (int x = 0; x < w; ++x) {
            const int at = TilePixels::index(x, y);
            const float r = grad.rgb[from + x], g = grad.rgb[plane + from + x], b = grad.rgb[2 * plane + from + x];
            out.r[at] = r, out.g[at] = g, out.b[at] = b;
            if (DEPTH) out.depth[at] = grad.depth[from + x];
            const float T = tile.T[at];
            const float through = background[0] * r + background[1] * g + background[2] * b;  // dL/dT at the end
            out.behind[at] = T * (grad.alpha ? through - grad.alpha[from + x] : through);
            out.T[at] = T;
        }
    }
}

// Writes partials[visit.slot] and sets live[visit.slot] for each visit that added to a pixel.
template <bool DEPTH>
inline void tile_backward(const Splat* splats, const Visit* visits, int x0, int y0, const TileState& tile, TileGrad& grad,
                          Partial* partials, uint8_t* live) {
    const TilePixels& px = TilePixels::get();
    for (int v = tile.visits - 1; v >= 0; --v) {
        if (v >= 4) __builtin_prefetch(&splats[visits[v - 4].splat]);
        if (!visits[v].groups) continue;
        const Splat& s = splats[visits[v].splat];
        const float mx = s.mx - x0, my = s.my - y0;
        vf s0{}, sx{}, sy{}, sxx{}, sxy{}, syy{}, cr{}, cg{}, cb{}, cd{}, ax{}, ay{};
        for (uint64_t m = visits[v].groups; m; m &= m - 1) {
            const int at = 4 * __builtin_ctzll(m);
            const vf dx = load(px.x + at) - mx, dy = load(px.y + at) - my;
            const vf p = log2_alpha(s, dx, dy);
            const vm on = band(counts(s, p), lti(set1i(v), loadi(tile.stop + at)));
            const vf full = exp2_raw(p);
            const vf alpha = keep(on, min(set1(ALPHA_MAX), full));
            const vf ra = rcp(1.0f - alpha);
            const vf T = load(grad.T + at) * ra;  // in front of the splat
            const vf vr = load(grad.r + at), vg = load(grad.g + at), vb = load(grad.b + at);
            vf value = dot3(vr, vg, vb, set1(s.r), set1(s.g), set1(s.bl));
            if (DEPTH) value = fma(load(grad.depth + at), set1(s.depth), value);
            const vf behind = load(grad.behind + at);
            const vf weight = alpha * T;
            cr = fma(weight, vr, cr), cg = fma(weight, vg, cg), cb = fma(weight, vb, cb);
            if (DEPTH) cd = fma(weight, load(grad.depth + at), cd);
            const vf d_alpha = fnma(behind, ra, T * value);
            store(grad.T + at, T);
            store(grad.behind + at, fma(weight, value, behind));
            const vf ds = keep(le(full, set1(ALPHA_MAX)), -alpha * d_alpha);  // a clamped alpha is constant
            const vf dsx = ds * dx, dsy = ds * dy;
            s0 += ds, sx += dsx, sy += dsy;
            sxx = fma(dsx, dx, sxx), sxy = fma(dsx, dy, sxy), syy = fma(dsy, dy, syy);
            ax += abs(fma(set1(2.0f * s.a), dsx, s.b * dsy)), ay += abs(fma(set1(2.0f * s.c), dsy, s.b * dsx));
        }
        Partial& out = partials[visits[v].slot];
        out.s = sum(s0), out.sx = sum(sx), out.sy = sum(sy);
        out.sxx = sum(sxx), out.sxy = sum(sxy), out.syy = sum(syy);
        out.r = sum(cr), out.g = sum(cg), out.b = sum(cb);
        out.depth = DEPTH ? sum(cd) : 0.0f;
        out.abs_x = sum(ax) * LN2, out.abs_y = sum(ay) * LN2;
        live[visits[v].slot] = 1;
    }
}

}  // namespace tidegs
