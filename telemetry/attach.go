package telemetry

import "sync"

// attached are the functions of Attach.
var attached struct {
	sync.Mutex
	fills []func(*Report)
}

// Attach has fill called for every report that a Source of this process makes, after
// [Source.Fill] and under the same rules: for a part of the process that its Source does not
// know, as the pager of paged attention. There is no way back.
func Attach(fill func(*Report)) {
	attached.Lock()
	defer attached.Unlock()
	attached.fills = append(attached.fills, fill)
}

func fillAttached(r *Report) {
	attached.Lock()
	fills := attached.fills // only ever appended to
	attached.Unlock()
	for _, fill := range fills {
		fill(r)
	}
}
