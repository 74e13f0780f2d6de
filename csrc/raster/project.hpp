// The first stage of a pass: rows of a block to splats. An item is up to ITEM_ROWS rows of one block.
#pragma once

#include "raster/geometry.hpp"
#include "raster/sh.hpp"

namespace tidegs {

constexpr int ITEM_ROWS = 256;

struct Item {
    int32_t block, row, rows;
    uint32_t first, count;           // its splats, in the order of rows
    uint64_t visible[ITEM_ROWS / 64];  // bit i of word j: row 64 j + i has a splat
};

inline const float* plane(const Layout& layout, const Blocks& blocks, int block, int64_t offset) {
    return reinterpret_cast<const float*>(blocks.arena + blocks.slots[block] * layout.slot_nbytes + offset);
}
inline float* plane(const Layout& layout, Blocks& blocks, int block, int64_t offset) {
    return reinterpret_cast<float*>(blocks.arena + blocks.slots[block] * layout.slot_nbytes + offset);
}

// rgb before the clamp at 0
inline void sh_color(int degree, const Direction& d, const Rows& base, const Rows& rest, vf (&rgb)[3]) {
    vf Y[16];
    sh_basis(degree, d, Y);
    for (int c = 0; c < 3; ++c) rgb[c] = fma(base[SH0 + c], set1(SH_C0), set1(0.5f));
    for (int k = 1; k < (degree + 1) * (degree + 1); ++k)
        for (int c = 0; c < 3; ++c) rgb[c] = fma(Y[k], rest[3 * (k - 1) + c], rgb[c]);
}

inline void write_splats(const Geometry& g, const vf (&rgb)[3], uint32_t seen, uint32_t row, Splat*& out) {
    const vf o = g.opacity * g.comp, lo = log2(max(o, set1(ALPHA_MIN)));
    const vf half = 0.5f * LOG2E * g.inv_det;
    const vf k2 = fma(lo - LOG2_ALPHA_MIN, set1(2.0f * LN2), set1(0.01f));  // d^T P d where alpha is 1/255; 0.01 is margin
    const vf field[13] = {g.mx, g.my, half * g.c22, -2.0f * half * g.c12, half * g.c11, lo,
                          max(rgb[0], vf{}), max(rgb[1], vf{}), max(rgb[2], vf{}), g.z,
                          sqrt(k2 * g.c22), g.c12 / g.c22, sqrt(g.det) / g.c22};
    alignas(64) float lanes[13][W];
    for (int k = 0; k < 13; ++k) store(lanes[k], field[k]);
    for (; seen; seen &= seen - 1) {
        const int i = __builtin_ctz(seen);
        float* to = reinterpret_cast<float*>(out);
        for (int k = 0; k < 13; ++k) to[k] = lanes[k][i];
        out->row = row + i;
        ++out;
    }
}

// Writes the item's splats to `out` (room for ITEM_ROWS) and its visible words; returns how many.
inline uint32_t project_item(const Layout& layout, const Blocks& blocks, const Camera& cam, Item& item, Splat* out) {
    const size_t stride = layout.capacity;
    const float* base = plane(layout, blocks, item.block, layout.base) + item.row;
    const float* rest = plane(layout, blocks, item.block, layout.rest) + item.row;
    Splat* end = out;
    std::memset(item.visible, 0, sizeof item.visible);
    for (int row = 0; row < item.rows; row += W) {
        const Rows rows{base + row, stride}, bands{rest + row, stride};
        Geometry g;
        camera_point(cam, rows, g);
        const uint32_t used = bits(first(item.rows - row));
        if (!(bits(g.visible) & used)) continue;
        project(cam, rows, g);
        const uint32_t seen = bits(g.visible) & used;
        if (!seen) continue;
        vf rgb[3];
        const Direction d = direction(g.wx - cam.position[0], g.wy - cam.position[1], g.wz - cam.position[2]);
        sh_color(cam.sh_degree, d, rows, bands, rgb);
        write_splats(g, rgb, seen, (uint32_t)row, end);
        item.visible[row / 64] |= (uint64_t)seen << (row % 64);
    }
    return (uint32_t)(end - out);
}

}  // namespace tidegs
