package inspect

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/internal/storetest"
	"github.com/kvtier/kvtier/diskstore/internal/testrows"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/tier/dir"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// encodeFile returns a page's file.
func encodeFile(t testing.TB, p *pagefile.Page) []byte {
	t.Helper()
	e, err := pagefile.Encode(storetest.Fingerprint(1), storetest.Tokens, p, nil)
	require.NoError(t, err)
	var file bytes.Buffer
	require.NoError(t, e.WriteTo(func(b []byte) error { file.Write(b); return nil }))
	return file.Bytes()
}

func TestVerifyAndInspectFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.kvp")
	p := storetest.Page(t, storetest.Fingerprint(1), 0, testrows.Prompt(1, storetest.Tokens))
	file := encodeFile(t, p)
	require.NoError(t, os.WriteFile(path, file, 0o600))
	verify := func() (*pagefile.Header, error) {
		blob, err := dir.OpenFile(vfs.OS, path, pagefile.Name{})
		require.NoError(t, err)
		defer blob.Close()
		return pagefile.Stream(ctx, blob, nil)
	}
	h, err := verify()
	require.NoError(t, err)
	require.Equal(t, p.Key(), h.Key)
	require.True(t, h.Layout.Equal(p.Layout))

	file[len(file)-pagefile.FooterBytes-1] ^= 1
	require.NoError(t, os.WriteFile(path, file, 0o600))
	_, err = verify()
	require.ErrorIs(t, err, pagefile.ErrDamaged)
	_, err = Header(vfs.OS, path)
	require.NoError(t, err, "the header is good")
	_, err = Header(vfs.OS, path+"x")
	require.ErrorIs(t, err, tier.ErrNotFound)
}
