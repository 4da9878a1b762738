package diskstore

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/kvtier/kvtier/diskstore/tier"
)

// inPageCache reports whether a whole file is in memory. Linux before 6.5 cannot tell, and the
// result is false.
func inPageCache(b tier.Blob) bool {
	file := osFile(b)
	if file == nil {
		return false
	}
	conn, err := file.SyscallConn()
	if err != nil {
		return false
	}
	page := int64(os.Getpagesize())
	pages := (b.Info().Bytes + page - 1) / page
	whole := false
	err = conn.Control(func(fd uintptr) {
		var stat unix.Cachestat_t
		all := unix.CachestatRange{} // an empty range is the whole file
		whole = unix.Cachestat(uint(fd), &all, &stat, 0) == nil && int64(stat.Cache) >= pages
	})
	return err == nil && whole
}
