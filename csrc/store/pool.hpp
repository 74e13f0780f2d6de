// A pool of I/O threads. Batches of several callers share it fairly; a caller works on its own batch meanwhile.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <list>
#include <mutex>
#include <thread>
#include <vector>

namespace tidegs::store {

class Pool {
   public:
    explicit Pool(int threads);
    ~Pool();

    // Runs job(0) ... job(n - 1) on the pool's threads and the caller's; returns when all are done.
    void run(size_t n, const std::function<void(size_t)>& job);

   private:
    struct Batch {
        const std::function<void(size_t)>* job;
        size_t n, next = 0, done = 0;
    };

    void work();
    // Takes the next index of the batch, with the mutex held; drops a batch that has none left from the list.
    bool take(Batch* batch, size_t* index);

    std::mutex mutex_;
    std::condition_variable ready_, finished_;
    std::list<Batch*> batches_;
    std::vector<std::thread> threads_;
    bool stop_ = false;
};

}  // namespace tidegs::store
