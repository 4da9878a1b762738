package ram

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// anonymous is the memory of this process that is in no file, in bytes, by the system's count.
func anonymous(t *testing.T) int64 {
	runtime.GC()
	status, err := os.ReadFile("/proc/self/status")
	require.NoError(t, err)
	found := regexp.MustCompile(`RssAnon:\s+(\d+) kB`).FindSubmatch(status)
	if found == nil {
		t.Skip("the system does not count memory that is in no file")
	}
	kilobytes, err := strconv.ParseInt(string(found[1]), 10, 64)
	require.NoError(t, err)
	return kilobytes << 10
}

// TestBytesAreThoseOfTheSystem compares the tier's count with the system's. The rows of each page
// are a mapping, which has a name on kernels that keep names.
func TestBytesAreThoseOfTheSystem(t *testing.T) {
	const pages, size = 16, 4 << 20
	w := New(Options{MaxTails: 1})
	w.SetLimit(1 << 30)
	layout, err := pagefile.NewLayout([]pagefile.Section{{RowBytes: size / pageTokens}}, pageTokens)
	require.NoError(t, err)
	rows := bytes.Repeat([]byte{1}, layout.Size())
	before := anonymous(t)
	for i := range pages {
		h := &pagefile.Header{PageTokens: pageTokens, Tokens: make([]int32, pageTokens), Layout: layout, Key: pagefile.Key{byte(i)}}
		w.Add(File{Info: tier.Info{Name: pagefile.Name{Class: pagefile.ClassPage, Key: h.Key}, Bytes: 1}, Tier: tier.Local}, h, rows)
	}
	held := w.Stats().Bytes
	require.InDelta(t, held, anonymous(t)-before, float64(held)/8)

	maps, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	for _, p := range w.pages {
		line := mappingOf(t, string(maps), uintptr(unsafe.Pointer(&p.Rows[0])))
		if strings.Contains(line, "[anon") {
			require.Contains(t, line, "[anon:kvtier: pages in memory]")
		}
		require.NotContains(t, line, "/", "in no file")
	}

	w.SetLimit(held / 2)
	require.LessOrEqual(t, w.Stats().Bytes, held/2)
	require.InDelta(t, w.Stats().Bytes, anonymous(t)-before, float64(held)/8)
	w.Close()
	require.InDelta(t, 0, anonymous(t)-before, float64(held)/8)
}

// mappingOf is the line of an address.
func mappingOf(t *testing.T, maps string, at uintptr) string {
	for _, line := range strings.Split(maps, "\n") {
		var begin, end uintptr
		if n, _ := fmt.Sscanf(line, "%x-%x", &begin, &end); n == 2 && begin <= at && at < end {
			return line
		}
	}
	require.Fail(t, "", "%x is not mapped", at)
	return ""
}
