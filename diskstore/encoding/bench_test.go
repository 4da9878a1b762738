package encoding_test

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/x448/float16"

	"github.com/kvtier/kvtier/diskstore/encoding"
	"github.com/kvtier/kvtier/diskstore/inspect"
	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// pagesEnv names a folder with page files, of f16 rows without compression, whose K and V are
// measured instead of random rows.
const pagesEnv = "KVTIER_BENCH_PAGES"

// section is the rows of a page in one layer, and what is stored of them.
type section struct {
	rows   []byte
	shape  encoding.Shape
	id     encoding.ID
	stored []byte
}

// BenchmarkEncodings encodes and decodes sections in each encoding, with one thread. "ratio" is the
// size of the rows over what is stored; "error" is the root mean square of the change of a number,
// over that of the numbers.
func BenchmarkEncodings(b *testing.B) {
	coder, err := encoding.NewCoder(1 << 32)
	require.NoError(b, err)
	lossless := func(s *section) { s.id, s.stored = coder.Lossless(s.rows, s.shape) }
	lossy := func(id encoding.ID) func(*section) {
		return func(s *section) {
			var err error
			s.id = id
			if s.stored, err = coder.Lossy(id, s.rows, s.shape); err != nil { // the store keeps such a section exact
				lossless(s)
			}
		}
	}
	sections := storedSections(b)
	if len(sections) == 0 {
		sections = randomSections()
	}
	for _, e := range []struct {
		name   string
		encode func(*section)
	}{
		{"zstd", func(s *section) { s.id, s.stored = encoding.Zstd, coder.EncodeZstd(s.rows) }},
		{"split", lossless},
		{"q8_0", lossy(encoding.Q8_0)}, {"q4_0", lossy(encoding.Q4_0)}, {"int4", lossy(encoding.Int4)},
	} {
		benchmarkEncoding(b, e.name, coder, sections, e.encode)
	}
}

func benchmarkEncoding(b *testing.B, name string, coder *encoding.Coder, sections []section, encode func(*section)) {
	size, stored, largest := 0, 0, 0
	for i := range sections {
		s := &sections[i]
		encode(s)
		if s.id == encoding.Raw {
			s.stored = s.rows
		}
		size, stored, largest = size+len(s.rows), stored+len(s.stored), max(largest, len(s.rows))
	}
	b.Run(name+"/encode", func(b *testing.B) {
		b.SetBytes(int64(size))
		for b.Loop() {
			for _, s := range sections {
				encode(&s)
			}
		}
	})
	out := make([]byte, largest)
	b.Run(name+"/decode", func(b *testing.B) {
		b.SetBytes(int64(size))
		for b.Loop() {
			for _, s := range sections {
				if err := coder.Decode(s.id, s.stored, out[:len(s.rows)]); err != nil {
					b.Fatal(err)
				}
			}
		}
		changed, all := 0.0, 0.0
		for _, s := range sections {
			require.NoError(b, coder.Decode(s.id, s.stored, out[:len(s.rows)]))
			for at := 0; at < len(s.rows); at += 2 {
				was := number(s.rows[at:])
				changed, all = changed+math.Pow(was-number(out[at:]), 2), all+was*was
			}
		}
		b.ReportMetric(float64(size)/float64(stored), "ratio")
		b.ReportMetric(math.Sqrt(changed/all), "error")
	})
}

func number(f16 []byte) float64 {
	return float64(float16.Frombits(binary.LittleEndian.Uint16(f16)).Float32())
}

// storedSections reads the page files that [pagesEnv] names.
func storedSections(b *testing.B) (all []section) {
	root := os.Getenv(pagesEnv)
	if root == "" {
		return nil
	}
	paths, err := filepath.Glob(filepath.Join(root, "*", "*.kvp"))
	require.NoError(b, err)
	require.NotEmpty(b, paths, "%s: name the folder of a fingerprint, as pages/v1/0123…", pagesEnv)
	for _, path := range paths {
		h, err := inspect.Header(vfs.OS, path)
		require.NoError(b, err)
		data, err := os.ReadFile(path)
		require.NoError(b, err)
		for _, s := range h.Sections {
			require.Equal(b, pagefile.EncodingRaw, s.Encoding, "%s is compressed: store pages with OLLAMA_KV_TIER_COMPRESS=0", path)
			if s.Kind == pagefile.KindK || s.Kind == pagefile.KindV {
				all = append(all, section{rows: data[s.Offset:][:s.Stored], shape: s.Shape()})
			}
		}
	}
	return all
}

// randomSections are K and V of 256 tokens in one layer of an 8B model, each channel of K with a mean and a
// scale of its own.
func randomSections() []section {
	const tokens, channels = 256, 1024
	rng := rand.New(rand.NewPCG(4, 4))
	mean, scale := make([]float64, channels), make([]float64, channels)
	for c := range channels {
		mean[c], scale[c] = 4*rng.NormFloat64(), math.Exp(rng.NormFloat64())
	}
	k, v := make([]byte, 2*tokens*channels), make([]byte, 2*tokens*channels)
	for i := range tokens * channels {
		c := i % channels
		binary.LittleEndian.PutUint16(k[2*i:], float16.Fromfloat32(float32(mean[c]+scale[c]*rng.NormFloat64())).Bits())
		binary.LittleEndian.PutUint16(v[2*i:], float16.Fromfloat32(float32(rng.NormFloat64())).Bits())
	}
	shape := encoding.Shape{RowBytes: 2 * channels}
	return []section{{rows: k, shape: shape}, {rows: v, shape: shape}}
}
