package diskstore

import (
	"log/slog"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/vfs"
)

// TestRemoteThatRefusesWrites: a remote tier that only this machine may not write, as with an
// export of root_squash, is read as before. One line names the directory and a remedy, and
// another one tells when a page is stored there again.
func TestRemoteThatRefusesWrites(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.EACCES, syscall.EPERM, syscall.EROFS} {
		t.Run(errno.Error(), func(t *testing.T) {
			inj := vfs.Inject(quickFS)
			var log strings.Builder
			o := testOptions(t, withFS(inj), withRemote(t))
			o.Logger = slog.New(slog.NewTextHandler(&log, nil))
			s := open(t, o)
			inRemote(t, s, 2)
			inj.Add(vfs.Rule{
				Path: regexp.MustCompile("^" + regexp.QuoteMeta(o.Remote.Root)),
				Ops:  []vfs.Op{vfs.OpCreate, vfs.OpMkdir, vfs.OpLock, vfs.OpRename, vfs.OpRemove, vfs.OpChtimes}, Err: errno,
			})
			page := mustStat(t, s.disk, s.pages.Page(putChain(t, s, prompt(9, testTokens))[0].Key()))
			for range 4 {
				require.ErrorIs(t, s.demote(ctx, page), errno)
				readChain(t, s, prompt(1, testTokens), testTokens)
			}
			require.False(t, s.Stats().Remote.Down, "it can be read")
			require.GreaterOrEqual(t, s.Stats().TierErrors, uint64(4))
			require.Equal(t, 1, strings.Count(log.String(), "refuses writes"), "%s", log.String())
			require.NotContains(t, log.String(), "not usable")
			_, line, _ := strings.Cut(log.String(), "refuses writes")
			require.Contains(t, line, o.Remote.Root)
			require.Contains(t, line, "remedy=")

			inj.Reset()
			require.NoError(t, s.demote(ctx, page))
			require.Equal(t, 1, strings.Count(log.String(), "may be written again"), "%s", log.String())
		})
	}
}
