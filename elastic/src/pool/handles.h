// Handles: numbers that look like pointers, are checked, and are never used twice.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

namespace kvc {

// fork_generation counts the forks between the first process and this one. The objects of a
// parent stay in a child's tables, and their locks may be held there by threads that the
// child does not have: each object remembers its generation and is refused in another.
unsigned fork_generation();

// handle_lock guards all tables. A fork waits for it, so that a child finds it free.
std::mutex & handle_lock();

// next_handle is a new number under the lock. The addresses are in no program's memory.
uintptr_t next_handle_locked();

// A HandleTable finds objects by handle. A call that runs keeps its object alive, also when
// another thread frees the handle meanwhile.
template <class Handle, class Object>
class HandleTable {
public:
    Handle * add(std::shared_ptr<Object> object) {
        std::lock_guard<std::mutex> lock(handle_lock());
        const uintptr_t handle = next_handle_locked();
        objects_.emplace(handle, std::move(object));
        return reinterpret_cast<Handle *>(handle);
    }

    std::shared_ptr<Object> find(Handle * handle) const {
        std::lock_guard<std::mutex> lock(handle_lock());
        const auto at = objects_.find(reinterpret_cast<uintptr_t>(handle));
        if (at == objects_.end() || at->second->generation != fork_generation()) {
            return nullptr;
        }
        return at->second;
    }

    void remove(Handle * handle) {
        std::lock_guard<std::mutex> lock(handle_lock());
        objects_.erase(reinterpret_cast<uintptr_t>(handle));
    }

private:
    std::unordered_map<uintptr_t, std::shared_ptr<Object>> objects_;
};

}  // namespace kvc
