#include "disk.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>

#include "kv_pager.h"
#include "timing.h"

namespace {

struct free_memory {
    void operator()(void * memory) const { free(memory); }
};
using buffer = std::unique_ptr<uint8_t, free_memory>;

// Into huge pages, as the pager's frames are: on disks that are slow for each segment of
// memory, small pages alone halve the rate.
buffer direct_buffer(uint64_t bytes) {
    constexpr uint64_t HUGE_PAGE = 2u << 20;
    const uint64_t     rounded   = (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    void * memory = nullptr;
    if (posix_memalign(&memory, HUGE_PAGE, rounded) != 0) {
        throw std::runtime_error("There is no memory for a buffer of " + std::to_string(bytes) + " bytes.");
    }
    madvise(memory, rounded, MADV_HUGEPAGE);
    return buffer(static_cast<uint8_t *>(memory));
}

[[noreturn]] void fail(const std::string & what, const std::string & dir, int error) {
    throw std::runtime_error(what + " in " + dir + " failed: " + std::strerror(error) +
                             ". Direct reads need a directory on a disk with room for K and V twice; name another with --spill.");
}

}  // namespace

direct_file::direct_file(const std::string & dir_, uint64_t bytes_, uint64_t chunk_bytes_)
    : dir(dir_), bytes(bytes_ / chunk_bytes_ * chunk_bytes_), chunk_bytes(chunk_bytes_) {
    const buffer chunk = direct_buffer(chunk_bytes);
    // Random bytes: some disks and virtual ones store zeros and repetitions for nothing.
    std::mt19937_64 rng(99);
    fd = open(dir.c_str(), O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);
    if (fd < 0) {
        fail("Opening an unnamed file for direct reads", dir, errno);
    }
    for (uint64_t at = 0; at < bytes; at += chunk_bytes) {
        for (uint64_t i = 0; i < chunk_bytes; i += sizeof(uint64_t)) {
            const uint64_t word = rng();
            std::memcpy(chunk.get() + i, &word, sizeof(word));
        }
        const ssize_t put = pwrite(fd, chunk.get(), chunk_bytes, off_t(at));
        if (put != ssize_t(chunk_bytes)) {
            const int error = put < 0 ? errno : ENOSPC;
            close(fd);
            fail("Writing a file for direct reads", dir, error);
        }
    }
}

direct_file::~direct_file() { close(fd); }

double direct_file::read_rate(uint32_t threads) const {
    std::vector<buffer> buffers;
    for (uint32_t i = 0; i < threads; i++) {
        buffers.push_back(direct_buffer(chunk_bytes));
        std::memset(buffers.back().get(), 0, chunk_bytes);
    }
    std::atomic<uint64_t> next{0};
    std::atomic<int> error{0};
    const stopwatch watch;
    std::vector<std::thread> readers;
    for (uint32_t i = 0; i < threads; i++) {
        readers.emplace_back([&, i] {
            for (uint64_t at; error == 0 && (at = next.fetch_add(chunk_bytes)) < bytes;) {
                const ssize_t got = pread(fd, buffers[i].get(), chunk_bytes, off_t(at));
                if (got != ssize_t(chunk_bytes)) {
                    error = got < 0 ? errno : EIO;
                }
            }
        });
    }
    for (std::thread & reader : readers) {
        reader.join();
    }
    const double rate = double(bytes) / watch.seconds();
    if (error != 0) {
        fail("Reading the file for direct reads", dir, error);
    }
    return rate;
}

double fio_read_rate(const std::string & dir, uint64_t bytes, uint64_t chunk_bytes, uint32_t threads) {
    std::string quoted = "'";
    for (char c : dir) {
        quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
    }
    quoted += "'";
    const std::string per_job = std::to_string(bytes / threads / chunk_bytes * chunk_bytes);
    const std::string command = "fio --name=kvp --directory=" + quoted + " --rw=read --direct=1 --ioengine=psync --size=" + per_job +
                                " --bs=" + std::to_string(chunk_bytes) + " --numjobs=" + std::to_string(threads) +
                                " --unlink=1 --group_reporting --output-format=json";
    FILE * pipe = popen(command.c_str(), "r");
    std::string text;
    char part[4096];
    for (size_t n; pipe && (n = fread(part, 1, sizeof(part), pipe)) > 0;) {
        text.append(part, n);
    }
    const int status = pipe ? pclose(pipe) : -1;
    // fio may print notes before the object.
    const size_t brace = text.find('{');
    const nlohmann::json report = nlohmann::json::parse(brace == std::string::npos ? "" : text.substr(brace), nullptr, false);
    if (status != 0 || report.is_discarded()) {
        throw std::runtime_error("Running fio in " + dir + " failed; is it installed? The command was: " + command);
    }
    return report.at("jobs").at(0).at("read").at("bw_bytes").get<double>();
}
