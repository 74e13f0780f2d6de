// The last stage of a pass: image-space gradients of an item's rows to its parameters, and Adam. Component by component
// over the rows of an item, so that each plane is streamed (see project.hpp).
#pragma once

#include "optim/adam.hpp"
#include "raster/bounds.hpp"
#include "raster/project.hpp"
#include "raster/tile_backward.hpp"

namespace tidegs {

struct ItemUpdate {
    RowBounds bounds;
    int32_t visible = 0;   // rows that Adam updated
    bool touched = false;
    double pose[12] = {};  // the view matrix's gradient; where asked for
};

// By row: image-space gradients of an item (the components of Partial), and what is made of them.
struct alignas(64) ItemGrad {
    RowPlane v[PARTIALS];
    RowPlane base[SH0];   // gradients of means, quats, scales, opacities
    RowPlane reg[4];      // gradients of the regularisation of scales and opacities
    RowPlane abs[2];      // sums over pixels of absolute gradients of the mean in the image; of seen rows only
    RowPlane dir[4];      // unit direction of view, 1 / distance
    RowPlane basis[16];   // harmonics; then gradients with respect to them
    RowPlane color;       // gradient of one coefficient
};

class ItemUpdater {
public:
    ItemUpdater(const Layout& layout, Blocks& blocks, const uint8_t* flags, const Camera& cam, const Adam& adam, const Item& item, bool pose)
        : cam_(cam), adam_(adam), item_(item), stride_(layout.capacity), pose_(pose) {
        auto at = [&](int64_t offset) { return plane(layout, blocks, item.block, offset) + item.row; };
        base_ = {at(layout.base), at(layout.m_base), at(layout.v_base)};
        rest_ = {at(layout.rest), at(layout.m_rest), at(layout.v_rest)};
        if (layout.stats >= 0 && adam.cameras > 0) stats_ = at(layout.stats);
        with_radius_ = layout.stat_components > 2;
        if (layout.grads >= 0) {
            grads_ = at(layout.grads);
            mark_ = grads_ + (BASE + layout.rest_components) * stride_;
        }
        last_ = flags[item.block] & LAST_OF_STEP;
        dense_ = last_ && adam.drift > 0;
        add_ = mark_ && !(flags[item.block] & FIRST_OF_STEP);
    }

    // `grad.v` holds the visible rows' image-space gradients of this camera.
    void run(ItemGrad& grad, ItemUpdate& out) {
        out = {};
        select_rows(out);
        if (active_ || idle_) {
            for (int i = 0; i < active_; ++i) geometry(grad, i);
            colors(grad);
            if (pose_) pose(out);
            for (int k = 0; k < SCALES; ++k) put(k, k < QUATS ? 0 : 1, grad.base[k]);
            for (int k = SCALES; k < SH0; ++k) put(k, k < OPACITIES ? 2 : 3, grad.base[k], regular() ? grad.reg[k - SCALES] : nullptr);
        }
        if (!last_) return;
        const Reach reach{dense_, adam_.lr[0] * adam_.drift, adam_.lr[2] * adam_.drift, adam_.eps};
        out.bounds = row_bounds(base_.p, base_.m, base_.v, stride_, 0, item_.rows, reach);
    }

private:
    // Values and moments of the planes "base" or "rest".
    struct Planes {
        float *p, *m, *v;
    };

    // Finds the groups of W rows to work on: those with a row that this camera sees, or an earlier one of the step saw.
    void select_rows(ItemUpdate& out) {
        for (int row = 0; row < item_.rows; row += W) {
            const uint32_t used = bits(first(item_.rows - row)), seen = item_.seen(row);
            const uint32_t marked = add_ ? bits(gt(load(mark_ + row), vf{})) & used : 0;
            const uint32_t rows = seen | marked;
            if (!last_ && mark_ && (rows || !add_)) {
                store(mark_ + row, keep(from_bits(rows), set1(1.0f)));
                out.touched = true;
            }
            if (dense_) out.touched = true;
            if (dense_ && !rows) resting_[idle_++] = row;
            if (!rows) continue;
            out.touched = true;
            if (last_) out.visible += __builtin_popcount(rows);
            at_[active_] = row, seen_[active_] = seen, marked_[active_] = marked, rows_[active_] = dense_ ? used : rows;
            ++active_;
        }
    }

    void geometry(ItemGrad& grad, int i) {
        const int row = at_[i];
        const Rows rows{base_.p + row, stride_};
        auto sum = [&](int k) { return load(grad.v[k] + row); };
        Geometry g;
        camera_point(cam_, rows, g);
        project(cam_, rows, g);
        const ImageSums sums{sum(0), sum(1), sum(2), sum(3), sum(4), sum(5), sum(9)};
        GeometryGrad d;
        project_grad(cam_, g, sums, d);
        if (stats_ && cam_.absgrad) collect(g, i, load(grad.abs[0] + row), load(grad.abs[1] + row));
        if (stats_ && !cam_.absgrad) collect(g, i, d.mean2d[0], d.mean2d[1]);
        for (int k = 0; k < 3; ++k) store(grad.base[MEANS + k] + row, d.means[k]);
        for (int k = 0; k < 4; ++k) store(grad.base[QUATS + k] + row, d.quats[k]);
        for (int k = 0; k < 3; ++k) store(grad.base[SCALES + k] + row, d.scales[k]);
        store(grad.base[OPACITIES] + row, d.opacity);
        if (pose_) {
            vf camera[12];
            camera_grad(cam_, g, d, camera);
            for (int c = 0; c < 12; ++c) add_pose(c, i, camera[c]);
        }
        if (regular()) {
            for (int k = 0; k < 3; ++k) store(grad.reg[k] + row, adam_.scale_reg * g.s[k]);
            store(grad.reg[3] + row, adam_.opacity_reg * g.opacity * g.rest);
        }
        if (cam_.sh_degree == 0) return;
        const Direction dir = direction(g.wx - cam_.position[0], g.wy - cam_.position[1], g.wz - cam_.position[2]);
        store(grad.dir[0] + row, dir.x), store(grad.dir[1] + row, dir.y), store(grad.dir[2] + row, dir.z);
        store(grad.dir[3] + row, dir.inv_norm);
        vf Y[16];
        sh_basis(cam_.sh_degree, dir, Y);
        for (int k = 1; k < terms(); ++k) store(grad.basis[k] + row, Y[k]);
    }

    // What densification goes by (gsplat/strategy/default.py _update_state): the norm of the gradient in image space,
    // (du, dv), in units of half the image; how many cameras saw the row; its greatest radius as a share of the image.
    void collect(const Geometry& g, int i, vf du, vf dv) const {
        const vf x = du * (0.5f * cam_.width * adam_.cameras), y = dv * (0.5f * cam_.height * adam_.cameras);
        const vf norm = sqrt(fma(x, x, y * y));
        const vm seen = from_bits(seen_[i]);
        float* at = stats_ + at_[i];
        store(at, load(at) + keep(band(seen, lt(norm, set1(1e18f))), norm));
        store(at + stride_, load(at + stride_) + keep(seen, set1(1.0f)));
        if (!with_radius_) return;
        at += 2 * stride_;
        const vf radius = max(g.rx, g.ry) * (1.0f / std::max(cam_.width, cam_.height));
        store(at, select(seen, max(load(at), radius), load(at)));
    }

    // Spherical harmonics: their coefficients' gradients, and the means' through the direction of view.
    void colors(ItemGrad& grad) {
        RowPlane* rgb = grad.v + 6;
        for (int c = 0; c < 3; ++c) {
            for (int i = 0; i < active_; ++i) store(grad.color + at_[i], SH_C0 * load(rgb[c] + at_[i]));
            put(SH0 + c, 4, grad.color);
        }
        for (int k = 1; k < terms(); ++k) {
            RowPlane sum;
            for (int c = 0; c < 3; ++c) {
                const float* p = rest_.p + (3 * (k - 1) + c) * stride_;
                for (int i = 0; i < active_; ++i) {
                    const int row = at_[i];
                    const vf d = load(rgb[c] + row), seen = c ? load(sum + row) : vf{};
                    store(sum + row, fma(load(p + row), d, seen));
                    store(grad.color + row, load(grad.basis[k] + row) * d);
                }
                put(BASE + 3 * (k - 1) + c, 5, grad.color);
            }
            for (int i = 0; i < active_; ++i) store(grad.basis[k] + at_[i], load(sum + at_[i]));
        }
        if (cam_.sh_degree == 0) return;
        for (int i = 0; i < active_; ++i) {
            const int row = at_[i];
            const Direction dir{load(grad.dir[0] + row), load(grad.dir[1] + row), load(grad.dir[2] + row), load(grad.dir[3] + row)};
            vf w[16], d[3];
            for (int k = 1; k < terms(); ++k) w[k] = load(grad.basis[k] + row);
            sh_direction_grad(cam_.sh_degree, dir, w, d[0], d[1], d[2]);
            for (int k = 0; k < 3; ++k) store(grad.base[MEANS + k] + row, load(grad.base[MEANS + k] + row) + d[k]);
            if (!pose_) continue;
            const float* R = cam_.R;  // [A | b] moves the camera by -R^T b, whatever A
            for (int k = 0; k < 3; ++k, R += 3) add_pose(4 * k + 3, i, dot3(d[0], d[1], d[2], set1(R[0]), set1(R[1]), set1(R[2])));
        }
    }

    // Rows that this camera does not see add nothing, nor does what overflowed (see put).
    void add_pose(int c, int i, vf value) {
        pose_sum_[c] = pose_sum_[c] + keep(band(from_bits(seen_[i]), lt(abs(value), set1(1e18f))), value);
    }
    // Lanes in order, so that bits depend on the rows alone.
    void pose(ItemUpdate& out) const {
        for (int c = 0; c < 12; ++c)
            for (int lane = 0; lane < W; ++lane) out.pose[c] += pose_sum_[c][lane];
    }
    bool regular() const { return adam_.opacity_reg > 0 || adam_.scale_reg > 0; }
    int terms() const { return (cam_.sh_degree + 1) * (cam_.sh_degree + 1); }

    // The gradient of one component goes to Adam, or to the step's sum. One that overflowed (degenerate splats) counts
    // as none, since its square would make the moments useless for good. `reg` is added once a step.
    void put(int component, int group, const float* grad, const float* reg = nullptr) const {
        const Planes& planes = component < BASE ? base_ : rest_;
        const size_t at = (component < BASE ? component : component - BASE) * stride_;
        float *p = planes.p + at, *m = planes.m + at, *v = planes.v + at, *sum = grads_ + component * stride_;
        const float lr = adam_.lr[group];
        for (int i = 0; i < active_; ++i) {
            const int row = at_[i];
            const vm rows = from_bits(rows_[i]);
            vf g = load(grad + row);
            g = keep(band(from_bits(seen_[i]), lt(abs(g), set1(1e18f))), g);
            if (add_) g = keep(from_bits(marked_[i]), load(sum + row)) + g;
            if (!last_) {
                store(sum + row, keep(rows, g));
                continue;
            }
            if (reg) g = g + keep(from_bits(seen_[i] | marked_[i]), load(reg + row));
            if (row % 16 == 0) {  // the next component's lines
                __builtin_prefetch(p + stride_ + row, 1);
                __builtin_prefetch(m + stride_ + row, 1);
                __builtin_prefetch(v + stride_ + row, 1);
            }
            adam_update(adam_, lr, rows, g, p + row, m + row, v + row);
        }
        for (int i = 0; i < idle_; ++i) {  // rows that no camera saw go on as their moments say
            const int row = resting_[i];
            adam_update(adam_, lr, first(item_.rows - row), vf{}, p + row, m + row, v + row);
        }
    }

    const Camera& cam_;
    const Adam& adam_;
    const Item& item_;
    const size_t stride_;
    const bool pose_;
    vf pose_sum_[12] = {};
    Planes base_, rest_;
    float *grads_ = nullptr, *mark_ = nullptr, *stats_ = nullptr;
    bool add_, last_, dense_, with_radius_;
    int at_[ITEM_GROUPS], active_ = 0;
    int resting_[ITEM_GROUPS], idle_ = 0;  // groups to which dense Adam gives no gradient
    uint32_t seen_[ITEM_GROUPS], marked_[ITEM_GROUPS], rows_[ITEM_GROUPS];  // bits of lanes: now, before, either
};

}  // namespace tidegs
