package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/tierenv"
)

// member is one file of an archive.
type member struct {
	header tar.Header
	data   []byte
}

// forgeries are changes that an attacker could make to an archive, and the reasons why it is refused.
var forgeries = map[string]struct {
	why   string
	forge func(files []member) []member
}{
	"traversal": {`found "../../../`, renamed("../../../")},
	"absolute":  {`found "/`, renamed("/")},
	"link": {"is not a regular file", func(files []member) []member {
		files[1].header.Typeflag, files[1].header.Linkname, files[1].header.Size = tar.TypeSymlink, "/etc/passwd", 0
		files[1].data = nil
		return files
	}},
	"extra": {`there is "more" after the last page`, func(files []member) []member {
		return append(files, member{tar.Header{Name: "more", Mode: 0o600, Size: 1}, []byte("x")})
	}},
	"order":   {`found "`, func(files []member) []member { files[1], files[2] = files[2], files[1]; return files }},
	"without": {`found "`, func(files []member) []member { return append(files[:1:1], files[2:]...) }},
	"damage":  {"page is damaged", func(files []member) []member { files[2].data[5000] ^= 1; return files }},
	"swap": {"page is ", func(files []member) []member { // names and order are right, contents are wrong
		files[1].data, files[2].data = files[2].data, files[1].data
		return files
	}},
	"huge":        {"manifest.json is 1099511627776 bytes", func(files []member) []member { files[0].header.Size = 1 << 40; return files[:1] }},
	"identity":    {"which is not that of its identity", edited(func(m values) { m["identity"].(values)["cache_type"] = "q8_0" })},
	"fingerprint": {`its fingerprint is "../`, edited(func(m values) { m["fingerprint"] = "../../../../etc" })},
	"tokens":      {"its manifest says 7", edited(func(m values) { m["tokens"] = 7 })},
	"version":     {"version 9", edited(func(m values) { m["version"] = 9 })},
	"format":      {`format "something else"`, edited(func(m values) { m["format"] = "something else" })},
	"pages":       {"it has 0 pages", edited(func(m values) { m["pages"] = []string{} })},
	"text":        {"parse its manifest", func(files []member) []member { files[0].data[0] = '?'; return files }},
}

// renamed puts text before the name of the first page.
func renamed(before string) func([]member) []member {
	return func(files []member) []member { files[1].header.Name = before + files[1].header.Name; return files }
}

type values = map[string]any

// edited changes an archive's manifest.
func edited(change func(values)) func([]member) []member {
	return func(files []member) []member {
		var m values
		if err := json.Unmarshal(files[0].data, &m); err != nil {
			panic(err)
		}
		change(m)
		text, err := json.Marshal(m)
		if err != nil {
			panic(err)
		}
		files[0].data, files[0].header.Size = text, int64(len(text))
		return files
	}
}

// forged returns an archive after a forgery.
func forged(archive []byte, forge func([]member) []member) ([]byte, error) {
	var files []member
	for tr := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		data, err := io.ReadAll(tr)
		if err != nil {
			return nil, err
		}
		files = append(files, member{tar.Header{Name: h.Name, Mode: h.Mode, Size: h.Size, ModTime: h.ModTime}, data})
	}
	var out bytes.Buffer
	tw := tar.NewWriter(&out)
	for _, f := range forge(files) {
		if err := tw.WriteHeader(&f.header); err != nil {
			return nil, err
		}
		if f.header.Size != int64(len(f.data)) {
			return out.Bytes(), nil // the flag says that more follows
		}
		if _, err := tw.Write(f.data); err != nil {
			return nil, err
		}
	}
	err := tw.Close()
	return out.Bytes(), err
}

// TestImportRefusesForgeries: no page of a forged archive is stored.
func TestImportRefusesForgeries(t *testing.T) {
	dir := t.TempDir()
	noVariables(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	keys := storeConversation(t, identityOf("qwen"), at("root"), "")
	status, _, said := kvtier(t, "export", "--root", at("root"), "--key", keys[2].String(), "-o", at("good.kvx"))
	require.Zero(t, status, said)
	archive, err := os.ReadFile(at("good.kvx"))
	require.NoError(t, err)
	for how, f := range forgeries {
		bad, err := forged(bytes.Clone(archive), f.forge)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(at("bad.kvx"), bad, 0o600))
		status, _, said := kvtier(t, "import", "--root", at("other"), at("bad.kvx"))
		require.Equal(t, 1, status, how)
		require.Contains(t, said, f.why, how)
		require.NoDirExists(t, at("other"), how)
	}
	status, _, said = kvtier(t, "import", "--root", at("other"), at("good.kvx"))
	require.Zero(t, status, said)
}

// TestAmbiguousDigits: digits that could name two models or pages are refused.
func TestAmbiguousDigits(t *testing.T) {
	noVariables(t)
	root := filepath.Join(t.TempDir(), "root")
	var last string
	for _, weights := range []string{"abcd1", "abcd2"} {
		identity := map[string]string{tierenv.KeyWeights: weights + strings.Repeat("0", 59)}
		last = storeConversation(t, identity, root, "")[0].String()
	}
	t.Setenv(localVar, root)
	for _, verb := range [][]string{{"rm"}, {"export", "--last", "-o", filepath.Join(t.TempDir(), "chat.kvx")}} {
		status, _, said := kvtier(t, append(verb, "--model", "abcd")...)
		require.Equal(t, 1, status, verb)
		require.Contains(t, said, `"abcd" could be abcd10000000 or abcd20000000; give more digits`)
	}
	// A page whose key differs in the last digit only.
	pages, err := filepath.Glob(filepath.Join(root, "v1", "*", last[:2], last+".kvp"))
	require.NoError(t, err)
	require.Len(t, pages, 1)
	data, err := os.ReadFile(pages[0])
	require.NoError(t, err)
	twin := last[:63] + map[bool]string{true: "1", false: "0"}[last[63] == '0']
	require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(pages[0]), twin+".kvp"), data, 0o600))
	for _, verb := range [][]string{{"inspect", last[:8]}, {"export", "--key", last[:63], "-o", filepath.Join(t.TempDir(), "chat.kvx")}} {
		status, _, said := kvtier(t, verb...)
		require.Equal(t, 1, status, verb)
		require.Contains(t, said, "; give more digits")
	}
	status, _, said := kvtier(t, "inspect", last)
	require.Zero(t, status, said)
	status, _, said = kvtier(t, "rm", "--model", "abcd1")
	require.Zero(t, status, said)
}
