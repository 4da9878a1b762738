// Package virtual has what a replay of requests on a page store in virtual time needs: a clock, and pages
// of one token and one byte for each block of a prompt.
package virtual

import (
	"sync/atomic"
	"time"

	"github.com/kvtier/kvtier/diskstore/pagefile"
)

// began is when virtual time begins. Replays end before today: pages from the future count as old.
var began = time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)

// Clock is virtual time. Any goroutine may use it.
type Clock struct{ nanos atomic.Int64 }

// Set makes it so many seconds after the beginning.
func (c *Clock) Set(seconds float64) { c.nanos.Store(nanos(seconds)) }

// Pass lets some seconds pass.
func (c *Clock) Pass(seconds float64) { c.nanos.Add(nanos(seconds)) }

// Now is the clock's time.
func (c *Clock) Now() time.Time { return began.Add(time.Duration(c.nanos.Load())) }

func nanos(seconds float64) int64 { return int64(seconds * float64(time.Second)) }

// Fingerprint is that of all pages.
var Fingerprint = pagefile.Key{1}

// Layout is that of all pages.
func Layout() (pagefile.Layout, error) {
	return pagefile.NewLayout([]pagefile.Section{{Kind: pagefile.KindK, RowBytes: 1}}, 1)
}

// Page is the page of a block at a token behind its parent.
func Page(l pagefile.Layout, parent pagefile.Key, start int, block int32) *pagefile.Page {
	return &pagefile.Page{Parent: parent, Start: uint32(start), Tokens: []int32{block}, Layout: l, Payload: make([]byte, l.Size())}
}

// FileBytes are the bytes that a page's file takes.
func FileBytes(l pagefile.Layout) (int64, error) {
	file, err := pagefile.Encode(Fingerprint, 1, Page(l, Fingerprint, 0, 0), nil)
	if err != nil {
		return 0, err
	}
	return pagefile.AlignUp(file.Header.FileBytes), nil
}
