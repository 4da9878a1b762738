// Device memory and addresses of the fake driver.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace fakecuda {

struct Allocation {
    size_t offset, size;   // in device memory
    bool   released = false;
    size_t mappings = 0;
};

struct Mapping {
    size_t   size;
    uint64_t allocation;
    bool     accessible = false;
};

// A Device is the state behind all functions; callers hold its lock.
class Device {
public:
    // Results are those of the driver. `why` is set where a rule was broken.
    int create(size_t size, uint64_t * handle, std::string & why);
    int release(uint64_t handle, std::string & why);
    int reserve(size_t size, size_t alignment, uint64_t * address, std::string & why);
    int unreserve(uint64_t address, size_t size, std::string & why);
    int map(uint64_t address, size_t size, size_t offset, uint64_t handle, std::string & why);
    int unmap(uint64_t address, size_t size, std::string & why);
    int allow(uint64_t address, size_t size, std::string & why);
    int fill(uint64_t address, size_t size, uint8_t value, std::string & why);
    int read(void * to, uint64_t address, size_t size, std::string & why) const;
    uint64_t shown(uint64_t address) const;

    void configure(size_t memory, size_t granularity);
    size_t memory() const { return memory_; }
    size_t used() const { return used_; }
    size_t granularity() const { return granularity_; }
    size_t handles() const;
    size_t mappings() const { return mapped_.size(); }
    size_t reservations() const { return reserved_.size(); }

private:
    bool     aligned(size_t n) const { return n != 0 && n % granularity_ == 0; }
    bool     inside_reservation(uint64_t address, size_t size) const;
    void     drop(uint64_t allocation);
    bool     covered(uint64_t address, size_t size, bool accessible) const;

    int      fd_ = -1;
    uint8_t * bytes_ = nullptr;      // the device's own view of all memory
    size_t   memory_ = 0, granularity_ = 0, used_ = 0;
    std::vector<bool> taken_;        // granules of memory
    uint64_t next_ = 1;
    std::map<uint64_t, Allocation> allocations_;
    std::map<uint64_t, Mapping>    mapped_;      // by address
    std::map<uint64_t, size_t>     reserved_;    // by address
};

}  // namespace fakecuda
