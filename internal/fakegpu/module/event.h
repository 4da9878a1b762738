// Events: the last mark that was recorded.
#pragma once

#include "ggml-backend-impl.h"
#include "stream.h"

namespace fakegpu {

ggml_backend_event_t new_event(ggml_backend_dev_t device);
void free_event(ggml_backend_dev_t device, ggml_backend_event_t event);
void synchronize_event(ggml_backend_dev_t device, ggml_backend_event_t event);
void record_event(ggml_backend_event_t event, Stream & stream);
void wait_for_event(ggml_backend_event_t event, Stream & stream);

}  // namespace fakegpu
