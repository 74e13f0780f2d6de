// Projection of W rows and its derivative, as gsplat 1.5.3 defines them (EWA splatting, Zwicker et al. 2001, with
// gsplat's limits, blur and opacity-aware radius), written with V = J R_cam R_quat S, so that cov2d = V V^T.
#pragma once

#include "core/math.hpp"
#include "raster/types.hpp"

namespace tidegs {

// Base plane of W rows: pointer to component 0 at the first row, and floats between components.
struct Rows {
    const float* p;
    size_t stride;
    vf operator[](int k) const { return load(p + k * stride); }
};

struct Geometry {
    vf wx, wy, wz;                   // mean, scene frame
    vf x, y, z, rz, tx, ty;          // camera frame; tx, ty after the limits
    vm in_x, in_y;                   // not limited
    vf T[2][3];                      // J R_cam
    vf qw, qx, qy, qz, inv_norm;     // normalised
    vf Q[3][3], s[3];                // rotation and standard deviations
    vf V[2][3];
    vf sharp11, sharp22;             // variances before the blur
    vf c11, c12, c22, det, inv_det;  // blurred covariance
    vf opacity, rest, comp;          // logistic of the logit, 1 - opacity; compensation (1 in classic mode)
    vf mx, my, rx, ry;
    vm visible;
};

inline void camera_point(const Camera& cam, const Rows& rows, Geometry& g) {
    g.wx = rows[MEANS], g.wy = rows[MEANS + 1], g.wz = rows[MEANS + 2];
    const float* R = cam.R;
    g.x = fma(set1(R[0]), g.wx, fma(set1(R[1]), g.wy, fma(set1(R[2]), g.wz, set1(cam.t[0]))));
    g.y = fma(set1(R[3]), g.wx, fma(set1(R[4]), g.wy, fma(set1(R[5]), g.wz, set1(cam.t[1]))));
    g.z = fma(set1(R[6]), g.wx, fma(set1(R[7]), g.wy, fma(set1(R[8]), g.wz, set1(cam.t[2]))));
    g.visible = band(ge(g.z, set1(cam.near_plane)), le(g.z, set1(cam.far_plane)));
}

inline void rotation(const Rows& rows, Geometry& g) {
    const vf w = rows[QUATS], x = rows[QUATS + 1], y = rows[QUATS + 2], z = rows[QUATS + 3];
    const vf n2 = fma(w, w, fma(x, x, fma(y, y, z * z)));
    const vm usable = band(gt(n2, set1(1e-30f)), lt(n2, set1(1e30f)));  // else the identity
    g.visible = band(g.visible, le(n2, n2));  // not NaN
    const vf inv = keep(usable, 1.0f / sqrt(n2));
    g.inv_norm = inv;
    g.qw = keep(usable, w * inv), g.qx = keep(usable, x * inv), g.qy = keep(usable, y * inv), g.qz = keep(usable, z * inv);
    const vf x2 = g.qx + g.qx, y2 = g.qy + g.qy, z2 = g.qz + g.qz;
    const vf xx = g.qx * x2, yy = g.qy * y2, zz = g.qz * z2, xy = g.qx * y2, xz = g.qx * z2, yz = g.qy * z2;
    const vf wx = g.qw * x2, wy = g.qw * y2, wz = g.qw * z2;
    g.Q[0][0] = 1.0f - (yy + zz), g.Q[0][1] = xy - wz, g.Q[0][2] = xz + wy;
    g.Q[1][0] = xy + wz, g.Q[1][1] = 1.0f - (xx + zz), g.Q[1][2] = yz - wx;
    g.Q[2][0] = xz - wy, g.Q[2][1] = yz + wx, g.Q[2][2] = 1.0f - (xx + yy);
}

// Fills all of g; rows that gsplat would not draw (and those whose numbers overflow) are not visible.
inline void project(const Camera& cam, const Rows& rows, Geometry& g) {
    const vf fx = set1(cam.fx), fy = set1(cam.fy);
    const float tan_x = 0.5f * cam.width / cam.fx, tan_y = 0.5f * cam.height / cam.fy;
    g.rz = 1.0f / g.z;
    const vf u = g.x * g.rz, v = g.y * g.rz;
    const vf u_max = set1((cam.width - cam.cx) / cam.fx + 0.3f * tan_x), u_min = set1(-cam.cx / cam.fx - 0.3f * tan_x);
    const vf v_max = set1((cam.height - cam.cy) / cam.fy + 0.3f * tan_y), v_min = set1(-cam.cy / cam.fy - 0.3f * tan_y);
    g.in_x = band(le(u, u_max), ge(u, u_min)), g.in_y = band(le(v, v_max), ge(v, v_min));
    g.tx = g.z * min(u_max, max(u_min, u)), g.ty = g.z * min(v_max, max(v_min, v));
    const vf j00 = fx * g.rz, j11 = fy * g.rz, rz2 = g.rz * g.rz;
    const vf j02 = -fx * g.tx * rz2, j12 = -fy * g.ty * rz2;
    for (int k = 0; k < 3; ++k) {
        g.T[0][k] = fma(j00, set1(cam.R[k]), j02 * cam.R[6 + k]);
        g.T[1][k] = fma(j11, set1(cam.R[3 + k]), j12 * cam.R[6 + k]);
    }
    rotation(rows, g);
    for (int k = 0; k < 3; ++k) {
        g.s[k] = exp(rows[SCALES + k]);
        for (int i = 0; i < 2; ++i)
            g.V[i][k] = dot3(g.T[i][0], g.T[i][1], g.T[i][2], g.Q[0][k], g.Q[1][k], g.Q[2][k]) * g.s[k];
    }
    g.c11 = dot3(g.V[0][0], g.V[0][1], g.V[0][2], g.V[0][0], g.V[0][1], g.V[0][2]);
    g.c12 = dot3(g.V[0][0], g.V[0][1], g.V[0][2], g.V[1][0], g.V[1][1], g.V[1][2]);
    g.c22 = dot3(g.V[1][0], g.V[1][1], g.V[1][2], g.V[1][0], g.V[1][1], g.V[1][2]);
    // det(V V^T) is the sum of squares of V's minors (Cauchy-Binet): no cancellation for needles.
    const vf m0 = g.V[0][1] * g.V[1][2] - g.V[0][2] * g.V[1][1], m1 = g.V[0][2] * g.V[1][0] - g.V[0][0] * g.V[1][2];
    const vf m2 = g.V[0][0] * g.V[1][1] - g.V[0][1] * g.V[1][0];
    const vf det0 = dot3(m0, m1, m2, m0, m1, m2);
    const vf blur = set1(cam.eps2d);
    g.det = det0 + blur * (g.c11 + g.c22 + blur);
    g.sharp11 = g.c11, g.sharp22 = g.c22;
    g.c11 += blur, g.c22 += blur;
    g.inv_det = 1.0f / g.det;
    g.comp = cam.antialiased ? sqrt(max(vf{}, det0 * g.inv_det)) : set1(1.0f);
    g.opacity = sigmoid(rows[OPACITIES]), g.rest = sigmoid(-rows[OPACITIES]);
    g.mx = fma(fx, u, set1(cam.cx)), g.my = fma(fy, v, set1(cam.cy));

    const vf o = g.opacity * g.comp;
    const vf extend = min(set1(3.33f), sqrt(max(vf{}, 2.0f * LN2 * log2(max(o, set1(ALPHA_MIN)) * 255.0f))));
    const vf rx = ceil(extend * sqrt(g.c11)), ry = ceil(extend * sqrt(g.c22));
    g.rx = rx, g.ry = ry;
    const vf clip = set1(cam.radius_clip), w = set1((float)cam.width), h = set1((float)cam.height);
    const vf limit = set1(1e30f);
    vm m = band(g.visible, band(gt(g.det, set1(1e-30f)), lt(g.det, limit)));
    m = band(m, ge(o, set1(ALPHA_MIN)));
    m = band(m, bor(gt(rx, clip), gt(ry, clip)));
    m = band(m, band(gt(g.mx + rx, vf{}), lt(g.mx - rx, w)));
    m = band(m, band(gt(g.my + ry, vf{}), lt(g.my - ry, h)));
    m = band(m, band(lt(abs(g.mx), limit), lt(abs(g.my), limit)));
    g.visible = band(m, band(gt(rx, vf{}), gt(ry, vf{})));
}

// Gradients of W rows in image space, summed over pixels: s is dL/dsigma of a pixel, d = pixel - mean.
struct ImageSums {
    vf s, sx, sy, sxx, sxy, syy;  // sums of s, s dx, s dy, s dx^2, s dx dy, s dy^2
    vf depth;
};

struct GeometryGrad {
    vf mean2d[2];
    vf means[3], quats[4], scales[3], opacity;  // with respect to what is stored: log scales, logits, raw quaternions
    vf T[2][3], camera[3];                      // with respect to J R_cam, and to the mean in the camera frame
};

inline void quat_grad(const Geometry& g, const vf (&dQ)[3][3], vf (&out)[4]) {
    const vf w = g.qw, x = g.qx, y = g.qy, z = g.qz;
    const vf a = dQ[2][1] - dQ[1][2], b = dQ[0][2] - dQ[2][0], c = dQ[1][0] - dQ[0][1];
    const vf d = dQ[0][1] + dQ[1][0], e = dQ[0][2] + dQ[2][0], f = dQ[1][2] + dQ[2][1];
    const vf nw = 2.0f * dot3(x, y, z, a, b, c);
    const vf nx = 2.0f * (fma(w, a, fma(y, d, z * e)) - 2.0f * x * (dQ[1][1] + dQ[2][2]));
    const vf ny = 2.0f * (fma(w, b, fma(x, d, z * f)) - 2.0f * y * (dQ[0][0] + dQ[2][2]));
    const vf nz = 2.0f * (fma(w, c, fma(x, e, y * f)) - 2.0f * z * (dQ[0][0] + dQ[1][1]));
    const vf along = fma(nw, w, dot3(nx, ny, nz, x, y, z));
    out[0] = fnma(along, w, nw) * g.inv_norm, out[1] = fnma(along, x, nx) * g.inv_norm;
    out[2] = fnma(along, y, ny) * g.inv_norm, out[3] = fnma(along, z, nz) * g.inv_norm;
}

// dL/dcov2d (entries 11, 12 counted once, 22), and dL/d(opacity before compensation).
inline void covariance_grad(const Camera& cam, const Geometry& g, const ImageSums& in, vf& g11, vf& g12, vf& g22, vf& o) {
    // conic P = cov^-1; dL/dP = [sxx sxy; sxy syy] / 2; dL/dcov = -P dL/dP P.
    const vf pa = g.c22 * g.inv_det, pb = -g.c12 * g.inv_det, pc = g.c11 * g.inv_det;
    const vf ha = 0.5f * in.sxx, hb = 0.5f * in.sxy, hc = 0.5f * in.syy;
    const vf r00 = fma(ha, pa, hb * pb), r01 = fma(ha, pb, hb * pc), r10 = fma(hb, pa, hc * pb), r11 = fma(hb, pb, hc * pc);
    g11 = -fma(pa, r00, pb * r10);
    g12 = -2.0f * fma(pa, r01, pb * r11);
    g22 = -fma(pb, r01, pc * r11);
    const vf d_alpha_o = -in.s / max(g.opacity * g.comp, set1(ALPHA_MIN));  // s = -alpha dL/dalpha
    o = d_alpha_o * g.comp;
    if (cam.antialiased) {
        // comp^2 = det(sharp) / det: its derivative is (adj(sharp) - comp^2 adj(blurred)) / det. Visible rows have a
        // comp of at least 1/255, so it needs no guard, where gsplat adds 1e-6.
        const vf d2 = d_alpha_o * g.opacity * 0.5f / max(g.comp, set1(ALPHA_MIN));  // dL/d(comp^2)
        const vf square = g.comp * g.comp;
        g11 += d2 * fnma(square, g.c22, g.sharp22) * g.inv_det;
        g12 += 2.0f * d2 * (1.0f - square) * pb;
        g22 += d2 * fnma(square, g.c11, g.sharp11) * g.inv_det;
    }
}

inline void project_grad(const Camera& cam, const Geometry& g, const ImageSums& in, GeometryGrad& out) {
    vf g11, g12, g22, d_opacity;
    covariance_grad(cam, g, in, g11, g12, g22, d_opacity);
    out.opacity = d_opacity * g.opacity * g.rest;

    vf dQ[3][3], dV[2][3];
    vf(&dT)[2][3] = out.T;
    for (int k = 0; k < 3; ++k) {
        dV[0][k] = fma(2.0f * g11, g.V[0][k], g12 * g.V[1][k]);
        dV[1][k] = fma(2.0f * g22, g.V[1][k], g12 * g.V[0][k]);
        out.scales[k] = fma(dV[0][k], g.V[0][k], dV[1][k] * g.V[1][k]);  // V's column k is proportional to s[k]
        const vf a = dV[0][k] * g.s[k], b = dV[1][k] * g.s[k];
        for (int i = 0; i < 3; ++i) dQ[i][k] = fma(g.T[0][i], a, g.T[1][i] * b);
        dV[0][k] = a, dV[1][k] = b;
    }
    quat_grad(g, dQ, out.quats);
    for (int i = 0; i < 2; ++i)
        for (int k = 0; k < 3; ++k) dT[i][k] = dot3(dV[i][0], dV[i][1], dV[i][2], g.Q[k][0], g.Q[k][1], g.Q[k][2]);

    const float* R = cam.R;
    const vf d00 = dot3(dT[0][0], dT[0][1], dT[0][2], set1(R[0]), set1(R[1]), set1(R[2]));
    const vf d02 = dot3(dT[0][0], dT[0][1], dT[0][2], set1(R[6]), set1(R[7]), set1(R[8]));
    const vf d11 = dot3(dT[1][0], dT[1][1], dT[1][2], set1(R[3]), set1(R[4]), set1(R[5]));
    const vf d12 = dot3(dT[1][0], dT[1][1], dT[1][2], set1(R[6]), set1(R[7]), set1(R[8]));

    // dL/dmean2d = -P (sx, sy): d = pixel - mean.
    const vf mu = (g.c12 * in.sy - g.c22 * in.sx) * g.inv_det, mv = (g.c12 * in.sx - g.c11 * in.sy) * g.inv_det;
    out.mean2d[0] = mu, out.mean2d[1] = mv;
    const vf fx = set1(cam.fx), fy = set1(cam.fy), rz2 = g.rz * g.rz;
    const vf a02 = -fx * rz2 * d02, a12 = -fy * rz2 * d12;  // dL/d(tx), dL/d(ty) with z held
    vf dx = fx * g.rz * mu + keep(g.in_x, a02);
    vf dy = fy * g.rz * mv + keep(g.in_y, a12);
    vf dz = in.depth - (fx * g.x * mu + fy * g.y * mv) * rz2;
    dz = dz - (fx * d00 + fy * d11) * rz2;
    // J02 = -fx tx / z^2: free, d/dz = 2 fx tx / z^3; limited, tx = z const, so J02 = -fx const / z: d/dz = fx tx / z^3.
    dz = dz - a02 * g.tx * g.rz * select(g.in_x, set1(2.0f), set1(1.0f));
    dz = dz - a12 * g.ty * g.rz * select(g.in_y, set1(2.0f), set1(1.0f));
    for (int k = 0; k < 3; ++k) out.means[k] = fma(set1(R[k]), dx, fma(set1(R[3 + k]), dy, set1(R[6 + k]) * dz));
    out.camera[0] = dx, out.camera[1] = dy, out.camera[2] = dz;
}

// The gradient with respect to [A | b], row by row, at the identity, where the view matrix becomes [A | b] times itself:
// the mean becomes A mean + b in the camera frame, and J R_cam becomes J A R_cam. Directions of view are not in it.
inline void camera_grad(const Camera& cam, const Geometry& g, const GeometryGrad& d, vf (&out)[12]) {
    const vf fx = set1(cam.fx), fy = set1(cam.fy), rz2 = g.rz * g.rz;
    const vf mean[3] = {g.x, g.y, g.z};
    for (int k = 0; k < 3; ++k) {
        const vf r0 = set1(cam.R[3 * k]), r1 = set1(cam.R[3 * k + 1]), r2 = set1(cam.R[3 * k + 2]);
        const vf a = fx * dot3(d.T[0][0], d.T[0][1], d.T[0][2], r0, r1, r2);
        const vf b = fy * dot3(d.T[1][0], d.T[1][1], d.T[1][2], r0, r1, r2);
        out[k] = fma(d.camera[0], mean[k], g.rz * a);
        out[4 + k] = fma(d.camera[1], mean[k], g.rz * b);
        out[8 + k] = d.camera[2] * mean[k] - rz2 * fma(g.tx, a, g.ty * b);
        out[4 * k + 3] = d.camera[k];
    }
}

}  // namespace tidegs
