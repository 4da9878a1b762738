package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"

	"github.com/rogpeppe/go-internal/testscript"
)

// member is one file of an archive.
type member struct {
	header tar.Header
	data   []byte
}

// forgeries are what somebody may do to an archive.
var forgeries = map[string]func(files []member) []member{
	"traversal": func(files []member) []member {
		files[1].header.Name = "../../../" + files[1].header.Name
		return files
	},
	"absolute": func(files []member) []member {
		files[1].header.Name = "/" + files[1].header.Name
		return files
	},
	"link": func(files []member) []member {
		files[1].header.Typeflag, files[1].header.Linkname, files[1].header.Size = tar.TypeSymlink, "/etc/passwd", 0
		files[1].data = nil
		return files
	},
	"extra": func(files []member) []member {
		return append(files, member{tar.Header{Name: "more", Mode: 0o600, Size: 1}, []byte("x")})
	},
	"order":   func(files []member) []member { files[1], files[2] = files[2], files[1]; return files },
	"without": func(files []member) []member { return append(files[:1:1], files[2:]...) },
	"damage":  func(files []member) []member { files[2].data[5000] ^= 1; return files },
	"swap": func(files []member) []member { // names and order are right, contents are not
		files[1].data, files[2].data = files[2].data, files[1].data
		return files
	},
	"huge": func(files []member) []member { files[0].header.Size = 1 << 40; return files[:1] },
	"identity": func(files []member) []member {
		return edit(files, func(m map[string]any) { m["identity"].(map[string]any)["cache_type"] = "q8_0" })
	},
	"fingerprint": func(files []member) []member {
		return edit(files, func(m map[string]any) { m["fingerprint"] = "../../../../etc" })
	},
	"tokens": func(files []member) []member {
		return edit(files, func(m map[string]any) { m["tokens"] = 7 })
	},
	"version": func(files []member) []member {
		return edit(files, func(m map[string]any) { m["version"] = 9 })
	},
	"format": func(files []member) []member {
		return edit(files, func(m map[string]any) { m["format"] = "something else" })
	},
	"pages": func(files []member) []member {
		return edit(files, func(m map[string]any) { m["pages"] = []string{} })
	},
	"text": func(files []member) []member { files[0].data[0] = '?'; return files },
}

// edit changes an archive's manifest.
func edit(files []member, change func(map[string]any)) []member {
	var m map[string]any
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

func forge(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 || forgeries[args[2]] == nil {
		ts.Fatalf("usage: forge IN OUT HOW")
	}
	in, err := os.Open(ts.MkAbs(args[0]))
	ts.Check(err)
	defer in.Close()
	var files []member
	for tr := tar.NewReader(in); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		ts.Check(err)
		data, err := io.ReadAll(tr)
		ts.Check(err)
		files = append(files, member{tar.Header{Name: h.Name, Mode: h.Mode, Size: h.Size, ModTime: h.ModTime}, data})
	}
	var out bytes.Buffer
	tw := tar.NewWriter(&out)
	for _, f := range forgeries[args[2]](files) {
		ts.Check(tw.WriteHeader(&f.header))
		if f.header.Size == int64(len(f.data)) {
			_, err := tw.Write(f.data)
			ts.Check(err)
		}
	}
	if args[2] != "huge" { // which cannot be closed: it is shorter than it says
		ts.Check(tw.Close())
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), out.Bytes(), 0o600))
}
