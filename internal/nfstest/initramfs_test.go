package nfstest

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// readArchive returns the names and contents of a cpio archive in the format "newc".
func readArchive(t *testing.T, archive []byte) (names []string, contents map[string]string) {
	const header, fields = 110, 13
	contents = make(map[string]string)
	align := func(n int) int { return (n + 3) &^ 3 }
	for at := 0; at < len(archive); {
		require.Equal(t, cpioMagic, string(archive[at:at+6]))
		var field [fields]int
		for i := range field {
			_, err := fmt.Sscanf(string(archive[at+6+8*i:at+14+8*i]), "%x", &field[i])
			require.NoError(t, err)
		}
		size, nameSize := field[6], field[11]
		name := string(archive[at+header : at+header+nameSize-1])
		at += align(header + nameSize)
		names, contents[name] = append(names, name), string(archive[at:at+size])
		at += align(size)
	}
	return names, contents
}

func TestArchive(t *testing.T) {
	var out bytes.Buffer
	a := newArchive(&out)
	a.file("etc/deep/file", 0o644, []byte("content"))
	a.file("etc/other", 0o644, nil)
	a.link("lib64", "lib")
	require.NoError(t, a.close())
	names, contents := readArchive(t, out.Bytes())
	require.Equal(t, []string{"etc", "etc/deep", "etc/deep/file", "etc/other", "lib64", cpioTrailer}, names, "a directory comes before its files, once")
	require.Equal(t, "content", contents["etc/deep/file"])
	require.Equal(t, "lib", contents["lib64"])
}

func TestArchiveOfAMissingFile(t *testing.T) {
	a := newArchive(new(bytes.Buffer))
	a.copy("file", "/does/not/exist")
	require.ErrorContains(t, a.close(), "/does/not/exist")
}
