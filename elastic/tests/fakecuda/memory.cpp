#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "cuda/driver.h"

using namespace kvc::cuda;

namespace fakecuda {

void Device::configure(size_t memory, size_t granularity) {
    if (bytes_ != nullptr) {
        munmap(bytes_, memory_);
        close(fd_);
    }
    for (const auto & [address, size] : reserved_) {
        munmap((void *) address, size);
    }
    reserved_.clear();
    mapped_.clear();
    allocations_.clear();
    used_        = 0;
    memory_      = memory;
    granularity_ = granularity;
    fd_          = memfd_create("fakecuda", MFD_CLOEXEC);
    if (fd_ < 0 || ftruncate(fd_, memory) != 0) {
        abort();
    }
    bytes_ = (uint8_t *) mmap(nullptr, memory, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
    if (bytes_ == MAP_FAILED) {
        abort();
    }
    taken_.assign(memory / granularity, false);
}

int Device::create(size_t size, uint64_t * handle, std::string & why) {
    if (!aligned(size)) {
        why = "cuMemCreate with a size that is no multiple of the granularity";
        return invalid_value;
    }
    // First fit of contiguous memory.
    const size_t n = size / granularity_;
    for (size_t first = 0; first + n <= taken_.size(); first++) {
        if (std::find(taken_.begin() + first, taken_.begin() + first + n, true) != taken_.begin() + first + n) {
            continue;
        }
        std::fill(taken_.begin() + first, taken_.begin() + first + n, true);
        memset(bytes_ + first * granularity_, 0xA5, size);
        used_ += size;
        *handle = next_++ << 8;
        allocations_[*handle] = {first * granularity_, size};
        return success;
    }
    return out_of_memory;
}

void Device::drop(uint64_t allocation) {
    const Allocation a = allocations_[allocation];
    if (!a.released || a.mappings > 0) {
        return;
    }
    const size_t first = a.offset / granularity_;
    std::fill(taken_.begin() + first, taken_.begin() + first + a.size / granularity_, false);
    used_ -= a.size;
    allocations_.erase(allocation);
}

int Device::release(uint64_t handle, std::string & why) {
    const auto at = allocations_.find(handle);
    if (at == allocations_.end() || at->second.released) {
        why = "cuMemRelease of a handle that is not there";
        return invalid_value;
    }
    at->second.released = true;
    drop(handle);
    return success;
}

int Device::reserve(size_t size, size_t alignment, uint64_t * address, std::string & why) {
    if (!aligned(size) || (alignment & (alignment - 1)) != 0) {
        why = "cuMemAddressReserve with a size or an alignment that is not allowed";
        return invalid_value;
    }
    alignment = std::max(alignment, granularity_);
    // More is taken, and the rest is given back.
    uint8_t * at = (uint8_t *) mmap(nullptr, size + alignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) {
        return out_of_memory;
    }
    uint8_t * base = (uint8_t *) (((uintptr_t) at + alignment - 1) / alignment * alignment);
    if (base > at) {
        munmap(at, base - at);
    }
    munmap(base + size, at + alignment - base);
    *address = (uint64_t) base;
    reserved_[*address] = size;
    return success;
}

int Device::unreserve(uint64_t address, size_t size, std::string & why) {
    const auto at = reserved_.find(address);
    if (at == reserved_.end() || at->second != size) {
        why = "cuMemAddressFree of a range that was not reserved like this";
        return invalid_value;
    }
    const auto mapping = mapped_.lower_bound(address);
    if (mapping != mapped_.end() && mapping->first < address + size) {
        why = "cuMemAddressFree of a range with mappings";
        return invalid_value;
    }
    munmap((void *) address, size);
    reserved_.erase(at);
    return success;
}

bool Device::inside_reservation(uint64_t address, size_t size) const {
    auto at = reserved_.upper_bound(address);
    return at != reserved_.begin() && (--at, address - at->first <= at->second && size <= at->second - (address - at->first));
}

int Device::map(uint64_t address, size_t size, size_t offset, uint64_t handle, std::string & why) {
    const auto a = allocations_.find(handle);
    if (!aligned(size) || address % granularity_ != 0 || offset != 0 || a == allocations_.end() || a->second.released ||
        size != a->second.size || !inside_reservation(address, size)) {
        why = "cuMemMap with a wrong size, offset, address or handle";
        return invalid_value;
    }
    auto next = mapped_.lower_bound(address);
    if ((next != mapped_.end() && next->first < address + size) ||
        (next != mapped_.begin() && std::prev(next)->first + std::prev(next)->second.size > address)) {
        why = "cuMemMap over a mapping";
        return invalid_value;
    }
    if (mmap((void *) address, size, PROT_NONE, MAP_SHARED | MAP_FIXED, fd_, a->second.offset) == MAP_FAILED) {
        return out_of_memory;
    }
    a->second.mappings++;
    mapped_[address] = {size, handle};
    return success;
}

int Device::unmap(uint64_t address, size_t size, std::string & why) {
    const auto at = mapped_.find(address);
    if (at == mapped_.end() || at->second.size != size) {
        why = "cuMemUnmap of a range that is not exactly one mapping";
        return invalid_value;
    }
    mmap((void *) address, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    const uint64_t handle = at->second.allocation;
    mapped_.erase(at);
    allocations_[handle].mappings--;
    drop(handle);
    return success;
}

bool Device::covered(uint64_t address, size_t size, bool accessible) const {
    const uint64_t end = address + size;
    auto at = mapped_.upper_bound(address);
    if (at != mapped_.begin()) {
        --at;
    }
    for (uint64_t next = address; next < end; ++at) {
        if (at == mapped_.end() || at->first > next || at->first + at->second.size <= next || (accessible && !at->second.accessible)) {
            return false;
        }
        next = at->first + at->second.size;
    }
    return true;
}

int Device::allow(uint64_t address, size_t size, std::string & why) {
    const auto first = mapped_.find(address);
    if (first == mapped_.end() || !aligned(size) || !covered(address, size, false)) {
        why = "cuMemSetAccess of a range that is not wholly mapped";
        return invalid_value;
    }
    mprotect((void *) address, size, PROT_READ | PROT_WRITE);
    for (auto at = first; at != mapped_.end() && at->first < address + size; ++at) {
        at->second.accessible = true;
    }
    return success;
}

int Device::fill(uint64_t address, size_t size, uint8_t value, std::string & why) {
    if (!covered(address, size, true)) {
        why = "cuMemsetD8Async of memory that cannot be accessed";
        return illegal_address;
    }
    memset((void *) address, value, size);
    return success;
}

int Device::read(void * to, uint64_t address, size_t size, std::string & why) const {
    if (!covered(address, size, true)) {
        why = "cuMemcpyDtoH of memory that cannot be accessed";
        return illegal_address;
    }
    memcpy(to, (const void *) address, size);
    return success;
}

uint64_t Device::shown(uint64_t address) const {
    auto at = mapped_.upper_bound(address);
    if (at == mapped_.begin()) {
        return 0;
    }
    --at;
    const uint64_t into = address - at->first;
    return into < at->second.size && at->second.accessible ? 1 + allocations_.at(at->second.allocation).offset + into : 0;
}

size_t Device::handles() const {
    return allocations_.size();
}

}  // namespace fakecuda
