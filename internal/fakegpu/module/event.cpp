#include "event.h"

namespace fakegpu {

namespace {

struct Event {
    std::mutex            mutex;
    std::shared_ptr<Mark> mark; // NULL: never recorded
};

Event & event_of(ggml_backend_event_t event) {
    return *(Event *) event->context;
}

std::shared_ptr<Mark> last_mark(ggml_backend_event_t event) {
    std::lock_guard<std::mutex> lock(event_of(event).mutex);
    return event_of(event).mark;
}

}  // namespace

ggml_backend_event_t new_event(ggml_backend_dev_t device) {
    return new ggml_backend_event{device, new Event};
}

void free_event(ggml_backend_dev_t, ggml_backend_event_t event) {
    delete &event_of(event);
    delete event;
}

void synchronize_event(ggml_backend_dev_t, ggml_backend_event_t event) {
    if (const auto mark = last_mark(event)) {
        mark->wait();
    }
}

void record_event(ggml_backend_event_t event, Stream & stream) {
    std::lock_guard<std::mutex> lock(event_of(event).mutex);
    event_of(event).mark = stream.mark();
}

void wait_for_event(ggml_backend_event_t event, Stream & stream) {
    if (const auto mark = last_mark(event)) {
        stream.wait_for(mark);
    }
}

}  // namespace fakegpu
