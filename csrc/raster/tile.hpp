// A tile's pixels in groups of W (4 wide, W / 4 high), and which groups a splat can touch.
// A group's bit in a 64-bit mask is 16 * column + its first row; its pixels start at float 4 * bit of a plane.
#pragma once

#include "core/math.hpp"
#include "raster/grid.hpp"
#include "raster/types.hpp"

namespace tidegs {

constexpr int PIXELS = TILE * TILE;
constexpr int GROUP_ROWS = W / 4;
constexpr uint64_t ALL_GROUPS = GROUP_ROWS == 4 ? 0x1111111111111111u : GROUP_ROWS == 2 ? 0x5555555555555555u : ~uint64_t(0);

struct alignas(64) TilePixels {
    float x[PIXELS], y[PIXELS];  // pixel centres, from the tile's corner, in the order of planes
    TilePixels() {
        for (int column = 0; column < 4; ++column)
            for (int row = 0; row < TILE; ++row)
                for (int i = 0; i < 4; ++i) {
                    x[index(4 * column + i, row)] = 4 * column + i + 0.5f;
                    y[index(4 * column + i, row)] = row + 0.5f;
                }
    }
    static int index(int px, int py) { return 4 * (px / 4 * TILE + py) + px % 4; }
    static const TilePixels& get() {
        static const TilePixels pixels;
        return pixels;
    }
};

// A splat as a tile sees it.
struct Local {
    float mx, my;
    uint64_t groups;  // that have a pixel centre in its ellipse
    Local(const Splat& s, int x0, int y0) : mx(s.mx - x0), my(s.my - y0) {
        uint64_t columns[4] = {0, 0, 0, 0};
        const float h2 = s.hy * s.hy;
        for (int row = 0; row < TILE; row += W) {
            const vf dy = to_float(iota()) + (row + 0.5f - my);
            const vf d2 = h2 - dy * dy;
            const vf half = s.width * sqrt(max(d2, vf{})) + Grid::MARGIN;
            const vf centre = mx + s.slope * dy;
            const vf left = centre - half, right = centre + half;
            const vm in = ge(d2, vf{});
            for (int c = 0; c < 4; ++c)
                columns[c] |= (uint64_t)bits(band(in, band(le(left, set1(4 * c + 3.5f)), ge(right, set1(4 * c + 0.5f))))) << row;
        }
        groups = columns[0] | columns[1] << 16 | columns[2] << 32 | columns[3] << 48;
        if (GROUP_ROWS >= 2) groups |= groups >> 1;
        if (GROUP_ROWS == 4) groups |= groups >> 2;
        groups &= ALL_GROUPS;
    }
};

// log2(alpha) of a group's pixels before the clamp, from their offsets to the mean. Forward and backward share it, so
// they agree on the pixels that count.
inline vf log2_alpha(const Splat& s, vf dx, vf dy) {
    const vf q = fma(set1(s.b), dx, s.c * dy);
    return fnma(s.a * dx, dx, fnma(q, dy, set1(s.lo)));
}
// 1/255 <= alpha, and sigma >= 0 as gsplat asks
inline vm counts(const Splat& s, vf p) { return band(ge(p, set1(LOG2_ALPHA_MIN)), le(p, set1(s.lo))); }

}  // namespace tidegs
