// C entry points of the rasterizer (raster/pass.hpp). An int is 0, or 1 where memory ran out.
#include <new>

#include "core/api.hpp"
#include "raster/noise.hpp"
#include "raster/twin.hpp"

template <class F>
static int guarded(F&& f) {
    try {
        f();
        return 0;
    } catch (const std::bad_alloc&) {
        return 1;
    }
}

TIDEGS_API void* tidegs_raster_open(const tidegs::Layout* layout, int64_t budget) {
    return new (std::nothrow) tidegs::Rasterizer(*layout, budget);
}
TIDEGS_API void tidegs_raster_close(void* raster) { delete static_cast<tidegs::Rasterizer*>(raster); }

TIDEGS_API void tidegs_raster_begin(void* raster, const tidegs::Camera* camera) {
    static_cast<tidegs::Rasterizer*>(raster)->begin(*camera);
}
TIDEGS_API int tidegs_raster_add(void* raster, const tidegs::Blocks* blocks) {
    return guarded([&] { static_cast<tidegs::Rasterizer*>(raster)->add(*blocks); });
}
TIDEGS_API int tidegs_raster_finish(void* raster, const tidegs::Image* image) {
    return guarded([&] { static_cast<tidegs::Rasterizer*>(raster)->finish(*image); });
}
TIDEGS_API int tidegs_raster_differentiate(void* raster, const tidegs::ImageGrad* grad) {
    return guarded([&] { static_cast<tidegs::Rasterizer*>(raster)->differentiate(*grad); });
}
TIDEGS_API int tidegs_raster_update(void* raster, int part, const tidegs::Blocks* blocks, const uint8_t* flags,
                                    const tidegs::Adam* adam, const tidegs::Updates* updates) {
    return guarded([&] { static_cast<tidegs::Rasterizer*>(raster)->update(part, *blocks, flags, *adam, *updates); });
}

TIDEGS_API int tidegs_raster_add_noise(const tidegs::Layout* layout, const tidegs::Blocks* blocks, const tidegs::Noise* noise,
                                const tidegs::Noised* out) {
    return guarded([&] { tidegs::add_noise(*layout, *blocks, *noise, *out); });
}

// Of the last image: splats, visits of tiles by splats, ranges that it was cut into, evaluations.
TIDEGS_API void tidegs_raster_counts(const void* raster, int64_t* out) {
    const auto* r = static_cast<const tidegs::Rasterizer*>(raster);
    out[0] = r->splats(), out[1] = r->visits(), out[2] = r->ranges(), out[3] = r->evaluations();
}

// The scalar twin of the pixel stage (raster/twin.hpp) on the last image, which must be one range; returns contributions.
TIDEGS_API int64_t tidegs_raster_twin(const void* raster, float* image, const float* grad, float* sums) {
    const auto* r = static_cast<const tidegs::Rasterizer*>(raster);
    return tidegs::twin(*r, r->camera(), image, grad, sums);
}
