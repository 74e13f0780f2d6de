// The first stage of a pass: rows of a block to splats. An item is up to ITEM_ROWS rows of one block.
// Planes are far apart (a component's rows are contiguous), so loops over spherical harmonics run component by component
// over all rows of an item: the other way round, all lines at hand would compete for one set of the cache.
#pragma once

#include "raster/geometry.hpp"
#include "raster/sh.hpp"

namespace tidegs {

constexpr int ITEM_ROWS = 256;
constexpr int ITEM_GROUPS = ITEM_ROWS / W;
typedef float RowPlane[ITEM_ROWS];

struct Item {
    int32_t block, row, rows;
    uint32_t first, count;             // its splats, in the order of rows
    uint64_t visible[ITEM_ROWS / 64];  // bit i of word j: row 64 j + i has a splat

    // Visible rows of the W rows from `at`.
    uint32_t seen(int at) const { return (uint32_t)(visible[at / 64] >> (at % 64)) & (uint32_t)((1u << W) - 1); }
};

inline const float* plane(const Layout& layout, const Blocks& blocks, int block, int64_t offset) {
    return reinterpret_cast<const float*>(blocks.arena + blocks.slots[block] * layout.slot_nbytes + offset);
}
inline float* plane(const Layout& layout, Blocks& blocks, int block, int64_t offset) {
    return reinterpret_cast<float*>(blocks.arena + blocks.slots[block] * layout.slot_nbytes + offset);
}

// Fields of Splat, by row, and the harmonics of their directions.
struct alignas(64) ProjectedRows {
    RowPlane field[13];
    RowPlane Y[16];
};
enum { RGB = 6 };  // the first colour among the fields

class Projector {
public:
    Projector(const Layout& layout, const Blocks& blocks, const Camera& cam, Item& item)
        : cam_(cam), item_(item), stride_(layout.capacity) {
        base_ = plane(layout, blocks, item.block, layout.base) + item.row;
        rest_ = plane(layout, blocks, item.block, layout.rest) + item.row;
    }

    // Finds the item's visible rows and counts them; `write` takes their splats.
    void run(ProjectedRows& rows) {
        std::memset(item_.visible, 0, sizeof item_.visible);
        for (int row = 0; row < item_.rows; row += W) geometry(row, rows);
        item_.count = 0;
        for (uint64_t word : item_.visible) item_.count += (uint32_t)__builtin_popcountll(word);
        if (active_) colors(rows);
    }
    void write(const ProjectedRows& rows, Splat* out) const {
        for (int i = 0; i < active_; ++i)
            for (uint32_t seen = item_.seen(at_[i]); seen; seen &= seen - 1) {
                const int row = at_[i] + __builtin_ctz(seen);
                float* to = reinterpret_cast<float*>(out);
                for (int k = 0; k < 13; ++k) to[k] = rows.field[k][row];
                out->row = row;
                ++out;
            }
    }

private:
    void geometry(int row, ProjectedRows& out) {
        const Rows rows{base_ + row, stride_};
        Geometry g;
        camera_point(cam_, rows, g);
        const uint32_t used = bits(first(item_.rows - row));
        if (!(bits(g.visible) & used)) return;
        project(cam_, rows, g);
        const uint32_t seen = bits(g.visible) & used;
        if (!seen) return;
        item_.visible[row / 64] |= (uint64_t)seen << (row % 64);
        at_[active_++] = row;

        const vf lo = log2(max(g.opacity * g.comp, set1(ALPHA_MIN)));
        const vf half = 0.5f * LOG2E * g.inv_det;
        const vf k2 = fma(lo - LOG2_ALPHA_MIN, set1(2.0f * LN2), set1(0.01f));  // d^T P d at alpha 1/255; 0.01 is margin
        const vf inv_c22 = 1.0f / g.c22;
        const vf field[13] = {g.mx, g.my, half * g.c22, -2.0f * half * g.c12, half * g.c11, lo,
                              fma(rows[SH0], set1(SH_C0), set1(0.5f)), fma(rows[SH0 + 1], set1(SH_C0), set1(0.5f)),
                              fma(rows[SH0 + 2], set1(SH_C0), set1(0.5f)), g.z,
                              sqrt(k2 * g.c22), g.c12 * inv_c22, sqrt(g.det) * inv_c22};
        for (int k = 0; k < 13; ++k) store(out.field[k] + row, field[k]);
        if (cam_.sh_degree == 0) return;
        vf Y[16];
        sh_basis(cam_.sh_degree, direction(g.wx - cam_.position[0], g.wy - cam_.position[1], g.wz - cam_.position[2]), Y);
        const int count = (cam_.sh_degree + 1) * (cam_.sh_degree + 1);
        for (int k = 1; k < count; ++k) store(out.Y[k] + row, Y[k]);
    }

    void colors(ProjectedRows& rows) const {
        const int count = (cam_.sh_degree + 1) * (cam_.sh_degree + 1);
        for (int k = 1; k < count; ++k) {
            const float* p = rest_ + 3 * (k - 1) * stride_;
            for (int i = 0; i < active_; ++i) {
                const int row = at_[i];
                const vf Y = load(rows.Y[k] + row);
                for (int c = 0; c < 3; ++c) {
                    float* sum = rows.field[RGB + c] + row;
                    store(sum, fma(Y, load(p + c * stride_ + row), load(sum)));
                    if (row % 16 == 0) __builtin_prefetch(p + (c + 3) * stride_ + row);
                }
            }
        }
        for (int c = 0; c < 3; ++c)
            for (int i = 0; i < active_; ++i) store(rows.field[RGB + c] + at_[i], max(load(rows.field[RGB + c] + at_[i]), vf{}));
    }

    const Camera& cam_;
    Item& item_;
    const size_t stride_;
    const float *base_, *rest_;
    int at_[ITEM_GROUPS], active_ = 0;  // groups of W rows with a visible one
};

}  // namespace tidegs
