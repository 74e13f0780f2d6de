// Front-to-back blending of one tile (Kerbl et al. 2023, as gsplat's rasterize_to_pixels does it).
#pragma once

#include "raster/order.hpp"
#include "raster/tile.hpp"

namespace tidegs {

// What backward needs of a tile, by group.
struct alignas(64) TileState {
    vf T[GROUPS];     // transmittance behind the last splat that counted
    vi stop[GROUPS];  // the visit at which the pixel had enough; no later one counts
    int32_t visits;   // looked at before all pixels had enough
};

// A group while it is blended: one run of memory, so that a visit touches few lines.
struct alignas(64) GroupColor {
    vf x, y;  // pixel centres
    vf T;     // negated once the pixel has enough
    vf r, g, b, depth;
    vi stop;
};

// The groups that lie within the image, at least in part. Pixels beyond its edge count as finished.
inline uint64_t begin_tile(const TilePlace& place, int n, GroupColor* groups) {
    uint64_t alive = 0;
    const vf right = set1((float)place.width), bottom = set1((float)place.height);
    for (int i = 0; i < GROUPS; ++i) {
        GroupColor& g = groups[i];
        g.x = pixel_x(i), g.y = pixel_y(i);
        const vm in = band(lt(g.x, right), lt(g.y, bottom));
        g.T = select(in, set1(1.0f), set1(-1.0f));
        g.r = g.g = g.b = g.depth = vf{};
        g.stop = selecti(in, set1i(n), vi{});
        if (any(in)) alive |= group_bit(i);
    }
    return alive;
}

// The visits' masks are left with the groups to which they added.
template <bool DEPTH>
inline int blend_visits(const Splat* splats, Visit* visits, int n, const TilePlace& place, uint64_t alive, GroupColor* groups) {
    for (int v = 0; v < n; ++v) {
        if (!alive) return v;
        const Splat& s = splats[visits[v].splat];
        if (v + 4 < n) __builtin_prefetch(&splats[visits[v + 4].splat]);
        const float mx = s.mx - place.x0, my = s.my - place.y0;
        uint64_t added = 0;
        for (uint64_t m = groups_in_ellipse(s, mx, my) & alive; m; m &= m - 1) {
            const int i = group_of(m);
            GroupColor& g = groups[i];
            const vf p = log2_alpha(s, g.x - mx, g.y - my);
            const vm seen = counts(s, p);
            const vf T = g.T;
            const vf alpha = keep(seen, min(set1(ALPHA_MAX), exp2_raw(p)));
            const vf next = fnma(T, alpha, T);
            const vm on = band(seen, gt(next, set1(T_MIN)));  // finished pixels have T < 0
            const vf weight = keep(on, alpha * T);
            g.r = fma(weight, set1(s.r), g.r);
            g.g = fma(weight, set1(s.g), g.g);
            g.b = fma(weight, set1(s.bl), g.b);
            if (DEPTH) g.depth = fma(weight, set1(s.depth), g.depth);
            g.T = select(on, next, T);
            added |= any(on) ? group_bit(i) : 0;
            const vm stops = band(andnot(on, seen), gt(T, vf{}));
            if (__builtin_expect(any(stops), 0)) {
                g.T = select(stops, -T, g.T);
                g.stop = selecti(stops, set1i(v), g.stop);
                if (signs(g.T) == bits(first(W))) alive &= ~group_bit(i);
            }
        }
        visits[v].groups = added;
    }
    return n;
}

template <bool DEPTH>
inline void tile_forward(const Splat* splats, Visit* visits, int n, const TilePlace& place, const float* background,
                         TileState& out, const Image* image) {
    GroupColor groups[GROUPS];
    const uint64_t alive = begin_tile(place, n, groups);
    out.visits = blend_visits<DEPTH>(splats, visits, n, place, alive, groups);
    for (int i = 0; i < GROUPS; ++i) out.T[i] = abs(groups[i].T), out.stop[i] = groups[i].stop;
    if (!image) return;
    const size_t plane = place.stride * image->height;
    vf values[GROUPS];
    for (int c = 0; c < 3; ++c) {
        for (int i = 0; i < GROUPS; ++i) {
            const GroupColor& g = groups[i];
            values[i] = fma(out.T[i], set1(background[c]), c == 0 ? g.r : c == 1 ? g.g : g.b);
        }
        write_tile(image->rgb + c * plane, place, values);
    }
    for (int i = 0; i < GROUPS; ++i) values[i] = 1.0f - out.T[i];
    write_tile(image->alpha, place, values);
    if (!DEPTH) return;
    for (int i = 0; i < GROUPS; ++i) values[i] = groups[i].depth;
    write_tile(image->depth, place, values);
}

}  // namespace tidegs
