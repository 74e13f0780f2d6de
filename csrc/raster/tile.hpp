// A tile's pixels in groups of W (4 wide, W / 4 high), and which groups a splat can touch.
// A group's bit in a 64-bit mask is 16 * column + its first row; planes of a tile hold groups in the order of their bits.
#pragma once

#include "core/math.hpp"
#include "raster/grid.hpp"
#include "raster/types.hpp"

namespace tidegs {

constexpr int PIXELS = TILE * TILE;
constexpr int GROUP_ROWS = W / 4;
constexpr int GROUPS = PIXELS / W;
constexpr uint64_t ALL_GROUPS = GROUP_ROWS == 4 ? 0x1111111111111111u : GROUP_ROWS == 2 ? 0x5555555555555555u : ~uint64_t(0);

inline uint64_t group_bit(int group) { return uint64_t(1) << (group * GROUP_ROWS); }
inline int group_of(uint64_t mask) { return __builtin_ctzll(mask) / GROUP_ROWS; }  // the first of a mask
inline int group_x(int group) { return group * GROUP_ROWS / TILE * 4; }
inline int group_y(int group) { return group * GROUP_ROWS % TILE; }
// Pixel centres of a group, from the tile's corner
inline vf pixel_x(int group) { return to_float(iota() & 3) + (group_x(group) + 0.5f); }
inline vf pixel_y(int group) { return to_float(iota() >> 2) + (group_y(group) + 0.5f); }

// Where a tile lies in the image's planes; tiles at the right and lower edge may be partial.
struct TilePlace {
    int x0, y0, width, height;  // of the image, from the tile's corner on: width, height >= 1
    size_t stride;              // of the image's rows
    bool partial() const { return width < TILE || height < TILE; }
    size_t offset() const { return (size_t)y0 * stride + x0; }
};

// A plane of the image to the order of groups; zero beyond the edge.
inline void read_tile(const float* plane, const TilePlace& place, vf* out, int step) {
    const float* from = plane + place.offset();
    size_t stride = place.stride;
    alignas(64) float copy[PIXELS];
    if (place.partial()) {
        std::memset(copy, 0, sizeof copy);
        for (int y = 0; y < std::min(TILE, place.height); ++y)
            std::memcpy(copy + TILE * y, from + y * stride, std::min(TILE, place.width) * sizeof(float));
        from = copy, stride = TILE;
    }
    for (int i = 0; i < GROUPS; ++i) out[i * step] = load_rows(from + group_y(i) * stride + group_x(i), stride);
}

inline void write_tile(float* plane, const TilePlace& place, const vf* values) {
    float* to = plane + place.offset();
    alignas(64) float copy[PIXELS];
    const bool partial = place.partial();
    for (int i = 0; i < GROUPS; ++i) {
        const size_t stride = partial ? TILE : place.stride;
        store_rows((partial ? copy : to) + group_y(i) * stride + group_x(i), stride, values[i]);
    }
    if (!partial) return;
    for (int y = 0; y < std::min(TILE, place.height); ++y)
        std::memcpy(to + y * place.stride, copy + TILE * y, std::min(TILE, place.width) * sizeof(float));
}

// The groups that have a pixel centre in the splat's ellipse; its mean is at (mx, my) from the tile's corner.
inline uint64_t groups_in_ellipse(const Splat& s, float mx, float my) {
    uint64_t columns[4] = {0, 0, 0, 0};
    const float h2 = s.hy * s.hy;
    for (int row = 0; row < TILE; row += W) {
        const vf dy = to_float(iota()) + (row + 0.5f - my);
        const vf d2 = h2 - dy * dy;
        const vf half = s.width * sqrt(max(d2, vf{})) + Grid::MARGIN;
        const vf centre = mx + s.slope * dy;
        const vf left = centre - half, right = select(ge(d2, vf{}), centre + half, set1(-1.0f));
        for (int c = 0; c < 4; ++c)
            columns[c] |= (uint64_t)bits(band(le(left, set1(4 * c + 3.5f)), ge(right, set1(4 * c + 0.5f)))) << row;
    }
    uint64_t groups = columns[0] | columns[1] << 16 | columns[2] << 32 | columns[3] << 48;
    if (GROUP_ROWS >= 2) groups |= groups >> 1;
    if (GROUP_ROWS == 4) groups |= groups >> 2;
    return groups & ALL_GROUPS;
}

// log2(alpha) of a group's pixels before the clamp, from their offsets to the mean. Forward and backward share it, so
// they agree on the pixels that count.
inline vf log2_alpha(const Splat& s, vf dx, vf dy) {
    const vf q = fma(set1(s.b), dx, s.c * dy);
    return fnma(s.a * dx, dx, fnma(q, dy, set1(s.lo)));
}
// 1/255 <= alpha, and sigma >= 0 as gsplat asks
inline vm counts(const Splat& s, vf p) { return band(ge(p, set1(LOG2_ALPHA_MIN)), le(p, set1(s.lo))); }

}  // namespace tidegs
