// The last stage of a pass: image-space gradients of an item's rows to its parameters, and Adam.
#pragma once

#include <cmath>
#include <limits>

#include "optim/adam.hpp"
#include "raster/project.hpp"
#include "raster/tile_backward.hpp"

namespace tidegs {

struct ItemUpdate {
    float lo[3], hi[3], scale;  // bounds of the means; greatest log scale
    int32_t visible;            // rows that Adam updated
    bool touched;
};

// Image-space gradients of an item: components of Partial, by row.
struct alignas(64) ItemGrad {
    float v[PARTIALS][ITEM_ROWS];
};

class ItemUpdater {
public:
    ItemUpdater(const Layout& layout, Blocks& blocks, const uint8_t* flags, const Camera& cam, const Adam& adam, const Item& item)
        : layout_(layout), cam_(cam), adam_(adam), item_(item), flags_(flags[item.block]), stride_(layout.capacity) {
        base_ = plane(layout, blocks, item.block, layout.base) + item.row;
        rest_ = plane(layout, blocks, item.block, layout.rest) + item.row;
        m_base_ = plane(layout, blocks, item.block, layout.m_base) + item.row;
        m_rest_ = plane(layout, blocks, item.block, layout.m_rest) + item.row;
        v_base_ = plane(layout, blocks, item.block, layout.v_base) + item.row;
        v_rest_ = plane(layout, blocks, item.block, layout.v_rest) + item.row;
        if (layout.grads >= 0) {
            grads_ = plane(layout, blocks, item.block, layout.grads) + item.row;
            mark_ = grads_ + (BASE + layout.rest_components) * stride_;
        }
    }

    // `grad` holds the visible rows' complete image-space gradients of this camera where LAST_OF_CAMERA is set.
    void run(const ItemGrad& grad, ItemUpdate& out) {
        for (int k = 0; k < 3; ++k) {
            out.lo[k] = std::numeric_limits<float>::infinity();
            out.hi[k] = -out.lo[k];
        }
        out.scale = -std::numeric_limits<float>::infinity();
        out.visible = 0;
        out.touched = false;
        const bool first = flags_ & FIRST_OF_STEP, last = flags_ & LAST_OF_STEP;
        if (!(flags_ & LAST_OF_CAMERA)) {
            if (first && mark_) clear_marks(out);
            return;
        }
        add_ = mark_ && !first;
        last_ = last;
        vf lo[3], hi[3], scale = set1(out.scale);
        for (int k = 0; k < 3; ++k) lo[k] = set1(out.lo[k]), hi[k] = set1(out.hi[k]);
        for (int row = 0; row < item_.rows; row += W) {
            update(grad, row, out);
            if (!last) continue;
            const vm used = tidegs::first(item_.rows - row);
            const Rows rows{base_ + row, stride_};
            for (int k = 0; k < 3; ++k) {
                lo[k] = min(select(used, rows[MEANS + k], lo[k]), lo[k]);
                hi[k] = max(select(used, rows[MEANS + k], hi[k]), hi[k]);
                scale = max(select(used, rows[SCALES + k], scale), scale);
            }
        }
        for (int k = 0; k < 3; ++k)
            for (int i = 0; i < W; ++i) out.lo[k] = std::min(out.lo[k], lo[k][i]), out.hi[k] = std::max(out.hi[k], hi[k][i]);
        for (int i = 0; i < W; ++i) out.scale = std::max(out.scale, scale[i]);
    }

private:
    void clear_marks(ItemUpdate& out) {
        std::memset(mark_, 0, item_.rows * sizeof(float));
        out.touched = true;
    }

    // W rows from `row`
    void update(const ItemGrad& grad, int row, ItemUpdate& out) {
        const uint32_t used = bits(first(item_.rows - row));
        const uint32_t seen = (uint32_t)(item_.visible[row / 64] >> (row % 64)) & used;
        marked_ = add_ ? gt(load(mark_ + row), vf{}) : vm{};
        const uint32_t rows = seen | (bits(marked_) & used);
        seen_ = from_bits(seen), rows_ = from_bits(rows), row_ = row;
        marked_ = band(marked_, rows_);
        if (!last_ && mark_) store(mark_ + row, keep(rows_, set1(1.0f)));
        if (!last_ && mark_ && !add_) out.touched = true;
        if (!rows) return;
        out.touched = true;
        if (last_) out.visible += __builtin_popcount(rows);
        gradients(grad);
    }

    void gradients(const ItemGrad& grad) {
        const Rows rows{base_ + row_, stride_};
        auto sum = [&](int k) { return load(grad.v[k] + row_); };
        Geometry g;
        camera_point(cam_, rows, g);
        project(cam_, rows, g);
        const ImageSums sums{sum(0), sum(1), sum(2), sum(3), sum(4), sum(5), sum(9)};
        GeometryGrad d;
        project_grad(cam_, g, sums, d);
        const vf rgb[3] = {sum(6), sum(7), sum(8)};
        vf gx, gy, gz;
        colors(g, rgb, gx, gy, gz);
        const vf means[3] = {d.means[0] + gx, d.means[1] + gy, d.means[2] + gz};
        for (int k = 0; k < 3; ++k) put(MEANS + k, 0, means[k]);
        for (int k = 0; k < 4; ++k) put(QUATS + k, 1, d.quats[k]);
        for (int k = 0; k < 3; ++k) put(SCALES + k, 2, d.scales[k]);
        put(OPACITIES, 3, d.opacity);
    }

    // Spherical harmonics: their coefficients' gradients, and the means' through the direction of view.
    void colors(const Geometry& g, const vf (&rgb)[3], vf& gx, vf& gy, vf& gz) {
        const int count = (cam_.sh_degree + 1) * (cam_.sh_degree + 1);
        const Direction dir = direction(g.wx - cam_.position[0], g.wy - cam_.position[1], g.wz - cam_.position[2]);
        vf Y[16], w[16];
        sh_basis(cam_.sh_degree, dir, Y);
        for (int c = 0; c < 3; ++c) put(SH0 + c, 4, SH_C0 * rgb[c]);
        for (int k = 1; k < count; ++k) {
            const float* p = rest_ + row_ + 3 * (k - 1) * stride_;
            w[k] = dot3(load(p), load(p + stride_), load(p + 2 * stride_), rgb[0], rgb[1], rgb[2]);
            for (int c = 0; c < 3; ++c) put(BASE + 3 * (k - 1) + c, 5, Y[k] * rgb[c]);
        }
        sh_direction_grad(cam_.sh_degree, dir, w, gx, gy, gz);
    }

    // The gradient of one component goes to Adam, or to the step's sum. One that overflowed (degenerate splats) counts
    // as none, since its square would make the moments useless for good.
    void put(int component, int group, vf grad) {
        grad = keep(band(seen_, lt(abs(grad), set1(1e18f))), grad);
        if (add_) grad = keep(marked_, load(grads_ + component * stride_ + row_)) + grad;
        if (!last_) {
            store(grads_ + component * stride_ + row_, keep(rows_, grad));
            return;
        }
        const bool base = component < BASE;
        const size_t at = (size_t)(base ? component : component - BASE) * stride_ + row_;
        adam_update(adam_, adam_.lr[group], rows_, grad, (base ? base_ : rest_) + at, (base ? m_base_ : m_rest_) + at,
                    (base ? v_base_ : v_rest_) + at);
    }

    const Layout& layout_;
    const Camera& cam_;
    const Adam& adam_;
    const Item& item_;
    const uint8_t flags_;
    const size_t stride_;
    float *base_, *rest_, *m_base_, *m_rest_, *v_base_, *v_rest_, *grads_ = nullptr, *mark_ = nullptr;
    bool add_ = false, last_ = false;
    vm seen_{}, rows_{}, marked_{};
    int row_ = 0;
};

}  // namespace tidegs
