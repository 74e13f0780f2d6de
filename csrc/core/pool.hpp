// Threads that wait for work. Invariant: items write distinct outputs, so results do not depend on who runs which item.
#pragma once

#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "core/trace.hpp"

namespace tidegs {

class Pool {
public:
    // The pool of this library; never destroyed, since a process may exit while its threads wait.
    static Pool& get() {
        static Pool* pool = new Pool;
        return *pool;
    }

    int threads() const { return wanted_; }
    void set_threads(int n) {
        std::lock_guard<std::mutex> one(caller_);
        stop();
        wanted_ = n < 1 ? 1 : n;
    }

    // Calls f(item, thread) for each item of [0, n), in any order, on all threads; returns when all are done. Throws the
    // first exception of an item. Calls from several threads take turns; f must not call `run`. `stage` names the work
    // in traces.
    template <class F>
    void run(int n, F&& f, const char* stage = "kernel") {
        if (n <= 0) return;
        std::lock_guard<std::mutex> one(caller_);
        auto call = [](void* context, int item, int thread) { (*static_cast<std::remove_reference_t<F>*>(context))(item, thread); };
        stage_ = stage;
        if (wanted_ == 1 || n == 1) {
            const Start start = Trace::get().begin();
            for (int i = 0; i < n; ++i) call(&f, i, 0);
            Trace::get().end(stage, 0, start);
            return;
        }
        start();
        error_ = nullptr;
        call_ = call;
        context_ = &f;
        next_.store(0, std::memory_order_relaxed);
        count_ = n;
        busy_.store(wanted_ - 1, std::memory_order_relaxed);
        {
            std::lock_guard<std::mutex> lock(mutex_);
            round_.fetch_add(1, std::memory_order_release);
        }
        wake_.notify_all();
        work(0);
        for (int spin = 0; busy_.load(std::memory_order_acquire) > 0; ++spin) {
            if (spin > SPINS) std::this_thread::yield();
        }
        if (error_) std::rethrow_exception(error_);
    }

private:
    static constexpr int SPINS = 4000;  // some ten microseconds, less than a sleep and a wake

    void start() {
        if (!team_.empty() && owner_ == getpid()) return;
        if (!team_.empty()) {  // a fork: the threads stayed with the parent
            new std::vector<std::thread>(std::move(team_));
            team_.clear();
        }
        owner_ = getpid();
        quit_ = false;
        const unsigned seen = round_.load();
        for (int i = 1; i < wanted_; ++i) team_.emplace_back([this, i, seen] { serve(i, seen); });
    }
    void stop() {
        if (!team_.empty() && owner_ == getpid()) {
            {
                std::lock_guard<std::mutex> lock(mutex_);
                quit_ = true;
                round_.fetch_add(1, std::memory_order_release);
            }
            wake_.notify_all();
            for (auto& t : team_) t.join();
        }
        team_.clear();
    }
    void serve(int thread, unsigned seen) {
        for (;;) {
            int spin = 0;
            while (round_.load(std::memory_order_acquire) == seen && spin < SPINS) ++spin;
            if (round_.load(std::memory_order_acquire) == seen) {
                std::unique_lock<std::mutex> lock(mutex_);
                wake_.wait(lock, [&] { return round_.load(std::memory_order_acquire) != seen; });
            }
            seen = round_.load(std::memory_order_acquire);
            if (quit_) return;
            work(thread);
            busy_.fetch_sub(1, std::memory_order_acq_rel);
        }
    }
    void work(int thread) {
        const Start start = Trace::get().begin();
        try {
            for (int i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < count_;) call_(context_, i, thread);
        } catch (...) {
            std::lock_guard<std::mutex> lock(mutex_);
            if (!error_) error_ = std::current_exception();
        }
        Trace::get().end(stage_, thread, start);
    }

    std::mutex caller_, mutex_;
    std::condition_variable wake_;
    std::vector<std::thread> team_;
    std::atomic<unsigned> round_{0};
    std::atomic<int> next_{0}, busy_{0};
    std::exception_ptr error_;
    void (*call_)(void*, int, int) = nullptr;
    void* context_ = nullptr;
    const char* stage_ = nullptr;
    int count_ = 0;
    int wanted_ = 1;
    pid_t owner_ = 0;
    bool quit_ = false;
};

}  // namespace tidegs
