// C entry points for the loader: what this library is, its threads, and copies that run outside of Python's lock.
#include "core/api.hpp"
#include "core/pool.hpp"
#include "core/simd.hpp"

TIDEGS_API const char* tidegs_isa() { return tidegs::ISA; }
TIDEGS_API void tidegs_set_threads(int n) { tidegs::Pool::get().set_threads(n); }
TIDEGS_API int tidegs_threads() { return tidegs::Pool::get().threads(); }
TIDEGS_API void tidegs_copy(void* to, const void* from, int64_t nbytes) { std::memcpy(to, from, (size_t)nbytes); }

// While on, stages are kept as events; changing it forgets them. Not to be called while a kernel runs.
TIDEGS_API void tidegs_trace(int on) { tidegs::Trace::get().set(on != 0, tidegs::Pool::get().threads()); }
TIDEGS_API int tidegs_trace_take(tidegs::Event* out, int room) { return tidegs::Trace::get().take(out, room); }
