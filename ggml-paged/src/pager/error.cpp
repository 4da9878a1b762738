#include <cerrno>
#include <cstdarg>
#include <cstdio>

#include "pager/pager.h"
#include "pager/state.h"

namespace {
thread_local char last_error[1024];
}

const char * kvp_last_error(void) {
    return last_error;
}

int kvp_set_error(int err, const char * format, ...) {
    // The arguments may contain the last sentence.
    char text[sizeof last_error];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    snprintf(last_error, sizeof last_error, "%s", text);
    return err;
}

namespace kvp {

void fail_locked(kvp_pager & p, int err, const char * message) {
    if (p.error.load() == 0) {
        p.error_message = message;
        p.error.store(err);
    }
    for (auto & cv : p.page_cv) {
        cv.notify_all();
    }
    wake_scans(p);
    p.io_cv.notify_all();
}

int sticky(kvp_pager & p) {
    const int err = p.error.load();
    return err == 0 ? 0 : kvp_set_error(err, "%s", p.error_message.c_str());
}

}  // namespace kvp

void kvp_fail(kvp_pager * pager, int err, const char * message) {
    kvp::guard g(*pager);
    // A caller that has no number for an error still stops the pager.
    kvp::fail_locked(*pager, err < 0 ? err : err > 0 ? -err : -EIO, message);
}

int kvp_pager_error(const kvp_pager * pager, const char ** message) {
    std::lock_guard<std::mutex> lock(pager->mutex);
    const int err = pager->error.load();
    if (message != nullptr) {
        *message = err != 0 ? pager->error_message.c_str() : nullptr;
    }
    return err;
}

std::shared_ptr<void> & kvp_attachment(kvp_pager * pager) {
    return pager->attachment;
}

std::mutex & kvp_attachment_mutex(kvp_pager * pager) {
    return pager->attachment_mutex;
}
