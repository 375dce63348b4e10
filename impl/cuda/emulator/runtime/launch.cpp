// Blocks over system threads, in an order shuffled by the seed.
#include "launch.h"

#include <algorithm>
#include <atomic>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "block.h"

extern "C" void emulated_launch(Launch* launch, void (*entry)(void**)) {
    const unsigned* grid = launch->grid;
    std::vector<std::uint64_t> order(std::uint64_t{grid[0]} * grid[1] * grid[2]);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937_64(launch->seed));
    std::atomic<std::size_t> next{0};
    const auto work = [&] {
        Block block(*launch, entry);
        for (std::size_t i; (i = next++) < order.size() && !__atomic_load_n(&launch->fault.found, __ATOMIC_ACQUIRE);) {
            const std::uint64_t id = order[i];
            const unsigned rest = id / grid[0];
            block.run({static_cast<unsigned>(id % grid[0]), rest % grid[1], rest / grid[1]});
        }
        if (launch->report_counter) block.counters.report(*launch);
    };
    std::vector<std::thread> workers;
    for (int i = 0; i < launch->workers; ++i) workers.emplace_back(work);
    for (std::thread& worker : workers) worker.join();
}
