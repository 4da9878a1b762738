// Mappings of single granules and of spans.
#include "cuda/device_backing.h"
#include "pool/error.h"

namespace kvc::cuda {

// settle waits for work that was queued: it may touch granules that are about to change.
Result DeviceBacking::settle() {
    step_ = "waiting for earlier work before changing";
    return cu_.context_wait();
}

Result DeviceBacking::hide(DeviceRegion & r, size_t i) {
    step_ = "unmapping";
    const Result result = r.shown[i] == Shown::hole ? success : cu_.unmap(at(r, i), granule);
    if (result == success) {
        r.shown[i] = Shown::hole;
    }
    return result;
}

Result DeviceBacking::show(DeviceRegion & r, size_t i, Handle handle, Shown as) {
    step_ = "mapping";
    const Result result = cu_.map(at(r, i), granule, 0, handle, 0);
    if (result == success) {
        r.shown[i]   = as;
        r.handles[i] = handle;
    }
    return result;
}

Result DeviceBacking::allow(const DeviceRegion & r, Span span) {
    step_ = "allowing access to";
    const AccessDescription access = device_->access();
    return cu_.set_access(at(r, span.first), span.count * granule, &access, 1);
}

Result DeviceBacking::fill(const DeviceRegion & r, Span span) {
    step_ = "filling with zeros";
    const Result result = cu_.fill(at(r, span.first), 0, span.count * granule, device_->stream);
    return result == success ? cu_.stream_wait(device_->stream) : result;
}

// place puts handles[i] at each granule of a span, and zeros into them. A granule that could
// not be taken out earlier is taken out first.
Result DeviceBacking::place(DeviceRegion & r, Span span, const std::vector<Handle> & handles) {
    for (size_t i = 0; i < span.count; i++) {
        const size_t g     = span.first + i;
        const bool   stuck = r.shown[g] == Shown::real;
        Result result = hide(r, g);
        if (result != success) {
            return result;
        }
        if (stuck) {
            let_go(r.handles[g]);
        }
        if ((result = show(r, g, handles[i], Shown::real)) != success) {
            return result;
        }
    }
    const Result result = allow(r, span);
    return result == success ? fill(r, span) : result;
}

// show_zeros shows the zero granule in every hole of a span, and allows access to the holes.
// Goes on after a failure, which is returned.
Result DeviceBacking::show_zeros(DeviceRegion & r, Span span) {
    Result first = success;
    const size_t end = span.first + span.count;
    for (size_t i = span.first; i < end;) {
        const size_t begin = i;
        for (; i < end && r.shown[i] == Shown::hole; i++) {
            const Result result = show(r, i, zero_, Shown::zero);
            if (result != success) {
                first = first == success ? result : first;
                break;
            }
        }
        if (i > begin) {
            const Result result = allow(r, {begin, i - begin});
            for (size_t g = begin; g < i && result != success; g++) {
                (void) hide(r, g); // a granule that shows zeros can be touched
            }
            first = first == success ? result : first;
        }
        i += i < end; // the granule that is no hole, or that could not be shown
    }
    return first;
}

// take_out removes those of `handles` that are placed in a span again, and leaves in
// `handles` those that are free. False where a granule stays as it is, or stays a hole.
bool DeviceBacking::take_out(DeviceRegion & r, Span span, std::vector<Handle> & handles) {
    bool all = true;
    size_t n = 0;
    for (size_t i = 0; i < span.count; i++) {
        const size_t g = span.first + i;
        const bool placed = r.shown[g] == Shown::real && r.handles[g] == handles[i];
        if (placed && hide(r, g) != success) {
            all = false; // the region keeps the handle
            continue;
        }
        handles[n++] = handles[i];
    }
    handles.resize(n);
    if (bare_ || (bare_end_ && span.first >= end_of(r))) {
        return bare_end(r) == success && all;
    }
    return show_zeros(r, span) == success && all;
}

// end_of is the number of granules up to the last real one.
size_t DeviceBacking::end_of(const DeviceRegion & r) {
    size_t n = r.granules;
    while (n > 0 && r.shown[n - 1] != Shown::real) {
        n--;
    }
    return n;
}

// bare_end takes the zero granule away behind the last real one, where KVC_BARE_END asks for that: the
// next commit there waits for nothing.
Result DeviceBacking::bare_end(DeviceRegion & r) {
    Result first = success;
    for (size_t i = r.granules; bare_end_ && i > 0 && r.shown[i - 1] != Shown::real; i--) {
        const Result result = hide(r, i - 1);
        first = first == success ? result : first;
    }
    return first;
}

// empty unmaps everything of a region and lets its memory go.
Result DeviceBacking::empty(DeviceRegion & r) {
    Result first = success;
    for (size_t i = 0; i < r.granules; i++) {
        const bool real = r.shown[i] == Shown::real;
        const Result result = hide(r, i);
        if (result != success) {
            first = first == success ? result : first;
        } else if (real) {
            let_go(r.handles[i]);
        }
    }
    step_ = "unmapping";
    return first;
}

}  // namespace kvc::cuda
