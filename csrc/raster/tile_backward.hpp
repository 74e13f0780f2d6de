// Back-to-front differentiation of one tile: partial gradients of each splat, summed over the tile's pixels.
#pragma once

#include "raster/tile_forward.hpp"

namespace tidegs {

// Sums over pixels, with s = dL/dsigma and d = pixel - mean.
struct Partial {
    float s, sx, sy, sxx, sxy, syy, r, g, b, depth;
};
constexpr int PARTIALS = 10;

// Sums over pixels of |dL/dmean2d|, where densification goes by them.
struct AbsPartial {
    float x, y;
};

// A group while it is differentiated.
struct alignas(64) GroupGrad {
    vf x, y;            // pixel centres
    vf r, g, b, depth;  // dL/d of the pixel
    vf behind;          // dL/d of the pixel times the colour (with the background) seen behind the visit at hand
    vf T;               // transmittance in front of it
    vi stop;
};

template <bool DEPTH>
inline void begin_tile_grad(const TileState& tile, const float* background, const TilePlace& place, const ImageGrad& grad,
                            GroupGrad* out) {
    constexpr int step = sizeof(GroupGrad) / sizeof(vf);
    const size_t plane = place.stride * grad.height;
    read_tile(grad.rgb, place, &out->r, step);
    read_tile(grad.rgb + plane, place, &out->g, step);
    read_tile(grad.rgb + 2 * plane, place, &out->b, step);
    if (DEPTH) read_tile(grad.depth, place, &out->depth, step);
    if (grad.alpha) read_tile(grad.alpha, place, &out->behind, step);
    for (int i = 0; i < GROUPS; ++i) {
        GroupGrad& g = out[i];
        const vf through = dot3(g.r, g.g, g.b, set1(background[0]), set1(background[1]), set1(background[2]));
        g.behind = grad.alpha ? through - g.behind : through;
        g.x = pixel_x(i), g.y = pixel_y(i);
        g.T = tile.T[i], g.stop = tile.stop[i];
    }
}

// Writes partials[visit.slot] (and, with ABS, abs[visit.slot]) and sets live[visit.slot] for each visit that added to a
// pixel.
template <bool DEPTH, bool ABS>
inline void tile_backward(const Splat* splats, const Visit* visits, const TilePlace& place, const float* background,
                          const TileState& tile, const ImageGrad& grad, Partial* partials, AbsPartial* abs_partials,
                          uint8_t* live) {
    GroupGrad groups[GROUPS];
    begin_tile_grad<DEPTH>(tile, background, place, grad, groups);
    for (int v = tile.visits - 1; v >= 0; --v) {
        if (v >= 4) __builtin_prefetch(&splats[visits[v - 4].splat]), __builtin_prefetch(&partials[visits[v - 4].slot], 1);
        if (!visits[v].groups) continue;
        const Splat& s = splats[visits[v].splat];
        const float mx = s.mx - place.x0, my = s.my - place.y0;
        vf s0{}, sx{}, sy{}, sxx{}, sxy{}, syy{}, cr{}, cg{}, cb{}, cd{}, ax{}, ay{};
        for (uint64_t m = visits[v].groups; m; m &= m - 1) {
            GroupGrad& g = groups[group_of(m)];
            const vf dx = g.x - mx, dy = g.y - my;
            const vf p = log2_alpha(s, dx, dy);
            const vm on = band(counts(s, p), lti(set1i(v), g.stop));
            const vf full = exp2_raw(p);
            const vf alpha = keep(on, min(set1(ALPHA_MAX), full));
            const vf T = g.T * rcp(1.0f - alpha);
            const vf r = g.r, gr = g.g, b = g.b;
            vf value = dot3(r, gr, b, set1(s.r), set1(s.g), set1(s.bl));
            if (DEPTH) value = fma(g.depth, set1(s.depth), value);
            const vf more = value - g.behind;  // what a more opaque splat would add
            g.behind = fma(alpha, more, g.behind);
            g.T = T;
            const vf weight = alpha * T;
            cr = fma(weight, r, cr), cg = fma(weight, gr, cg), cb = fma(weight, b, cb);
            if (DEPTH) cd = fma(weight, g.depth, cd);
            const vf ds = keep(le(full, set1(ALPHA_MAX)), weight * more);  // -dL/dsigma; a clamped alpha is constant
            const vf dsx = ds * dx, dsy = ds * dy;
            s0 += ds, sx += dsx, sy += dsy;
            sxx = fma(dsx, dx, sxx), sxy = fma(dsx, dy, sxy), syy = fma(dsy, dy, syy);
            if (ABS) {  // dsigma/dmean of the exponent in log2_alpha
                ax += abs(fma(set1(2 * s.a), dsx, s.b * dsy));
                ay += abs(fma(set1(2 * s.c), dsy, s.b * dsx));
            }
        }
        Partial& out = partials[visits[v].slot];
        sum4(-s0, -sx, -sy, -sxx, &out.s);
        sum4(-sxy, -syy, cr, cg, &out.sxy);
        out.b = sum(cb);
        out.depth = DEPTH ? sum(cd) : 0.0f;
        if (ABS) abs_partials[visits[v].slot] = {LN2 * sum(ax), LN2 * sum(ay)};
        live[visits[v].slot] = 1;
    }
}

}  // namespace tidegs
