// C entry points of the rasterizer. Each returns 0, or 1 where memory ran out.
#include <new>

#include "core/api.hpp"
#include "raster/pass.hpp"

TIDEGS_API void* tidegs_raster_open(const tidegs::Layout* layout, int64_t budget) {
    return new (std::nothrow) tidegs::Rasterizer(*layout, budget);
}
TIDEGS_API void tidegs_raster_close(void* raster) { delete static_cast<tidegs::Rasterizer*>(raster); }

TIDEGS_API int tidegs_raster_forward(void* raster, const tidegs::Camera* camera, const tidegs::Blocks* blocks,
                                     const tidegs::Image* image) {
    try {
        static_cast<tidegs::Rasterizer*>(raster)->forward(*camera, *blocks, *image);
        return 0;
    } catch (const std::bad_alloc&) {
        return 1;
    }
}

TIDEGS_API int tidegs_raster_backward(void* raster, const tidegs::ImageGrad* grad, const uint8_t* flags,
                                      const tidegs::Adam* adam, const tidegs::Updates* updates) {
    try {
        static_cast<tidegs::Rasterizer*>(raster)->backward(*grad, flags, *adam, *updates);
        return 0;
    } catch (const std::bad_alloc&) {
        return 1;
    }
}

// The same in steps, for a camera whose blocks come in parts (raster/pass.hpp).
TIDEGS_API void tidegs_raster_begin(void* raster, const tidegs::Camera* camera) {
    static_cast<tidegs::Rasterizer*>(raster)->begin(*camera);
}
TIDEGS_API int tidegs_raster_add(void* raster, const tidegs::Blocks* blocks) {
    try {
        static_cast<tidegs::Rasterizer*>(raster)->add(*blocks);
        return 0;
    } catch (const std::bad_alloc&) {
        return 1;
    }
}
TIDEGS_API int tidegs_raster_finish(void* raster, const tidegs::Image* image) {
    try {
        static_cast<tidegs::Rasterizer*>(raster)->finish(*image);
        return 0;
    } catch (const std::bad_alloc&) {
        return 1;
    }
}
TIDEGS_API int tidegs_raster_differentiate(void* raster, const tidegs::ImageGrad* grad) {
    try {
        static_cast<tidegs::Rasterizer*>(raster)->differentiate(*grad);
        return 0;
    } catch (const std::bad_alloc&) {
        return 1;
    }
}
TIDEGS_API int tidegs_raster_update(void* raster, int part, const tidegs::Blocks* blocks, const uint8_t* flags,
                                    const tidegs::Adam* adam, const tidegs::Updates* updates) {
    try {
        static_cast<tidegs::Rasterizer*>(raster)->update_part(part, *blocks, flags, *adam, *updates);
        return 0;
    } catch (const std::bad_alloc&) {
        return 1;
    }
}

// Of the last forward pass: splats, visits of tiles by splats, ranges that the region was cut into, evaluations.
TIDEGS_API void tidegs_raster_counts(const void* raster, int64_t* out) {
    const auto* r = static_cast<const tidegs::Rasterizer*>(raster);
    out[0] = r->splats(), out[1] = r->visits(), out[2] = r->ranges(), out[3] = r->evaluations();
}
