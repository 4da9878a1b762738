package dir

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/internal/storetest"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// TestLedgerOfAnySize: a ledger as large as may be is read, a larger one is none.
func TestLedgerOfAnySize(t *testing.T) {
	tr := New(storetest.QuickFS, storetest.PrivateDir(t), Options{Create: true})
	require.NoError(t, tr.Claim(ctx))
	path := filepath.Join(tr.base, ledgerFile)
	for _, size := range []int{0, 1, maxOwnBytes, maxOwnBytes + 1} {
		require.NoError(t, os.WriteFile(path, bytes.Repeat([]byte("x"), size), 0o600))
		content, err := tr.Account(ctx, nil)
		require.NoError(t, err)
		if size > maxOwnBytes {
			size = 0
		}
		require.Len(t, content, size)
	}
	require.NoError(t, tr.Close())
}

// TestLedgerThatIsCutWhileItIsRead: a ledger that ends early cannot be read, and the next
// change makes a new one.
func TestLedgerThatIsCutWhileItIsRead(t *testing.T) {
	for _, end := range []error{io.EOF, io.ErrUnexpectedEOF} {
		inj := vfs.Inject(storetest.QuickFS)
		tr := New(inj, storetest.PrivateDir(t), Options{Create: true})
		write := func(content []byte, _ string) ([]byte, error) { return append(content, 'x'), nil }
		_, err := tr.Account(ctx, write)
		require.NoError(t, err)
		inj.Add(vfs.Rule{Ops: []vfs.Op{vfs.OpRead}, Err: end})
		content, err := tr.Account(ctx, nil)
		require.NoError(t, err)
		require.Empty(t, content)
		content, err = tr.Account(ctx, write)
		require.NoError(t, err)
		require.Equal(t, "x", string(content))
		require.NoError(t, tr.Close())
	}
}
