package proxy

import (
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/llamatier"
)

// TestTheFirstStepIsAddedToAnAccount, in pieces of any size, and nothing else is changed.
func TestTheFirstStepIsAddedToAnAccount(t *testing.T) {
	const (
		usage = `"usage":{"prompt_tokens":310,"prompt_tokens_details":{"cached_tokens":300}},`
		made  = `"timings":{"cache_n":300,"prompt_n":10,"prompt_ms":25.5,"prompt_per_token_ms":2.55,"prompt_per_second":392.15,"predicted_n":7,"predicted_ms":1e-3}`
		text  = `data: {"content":"\"cache_n\":300, \"timings\":{ and {"}` + "\n\n"
	)
	staged := &llamatier.Answer{Cached: 100, Processed: 200, Generated: 1, Took: 500 * time.Millisecond}
	want := strings.Replace(usage, `"cached_tokens":300`, `"cached_tokens":100`, 1) +
		`"timings":{"cache_n":100,"prompt_n":210,"prompt_ms":525.5,"prompt_per_token_ms":2.5023809523809524,"prompt_per_second":399.61941008563275,"predicted_n":7,"predicted_ms":1e-3}`
	for in, want := range map[string]string{
		text + `data: {` + usage + made + "}\n\ndata: [DONE]\n\n": text + `data: {` + want + "}\n\ndata: [DONE]\n\n",
		`{` + made + `,` + made + `}`:                             `{` + want[strings.Index(want, `"timings"`):] + `,` + want[strings.Index(want, `"timings"`):] + `}`,
		text:                                                      text,
		`{"cache_n":`:                                             `{"cache_n":`,
		`{"cache_n":-,"cached_tokens":5}`:                         `{"cache_n":-,"cached_tokens":0}`,
		`"prompt_progress":{"total":310,"cache":300,"processed":305,"time_ms":7}`: `"prompt_progress":{"total":310,"cache":100,"processed":305,"time_ms":507}`,
		"": "",
	} {
		for name, pieces := range map[string]func(io.Reader) io.Reader{
			"whole": func(r io.Reader) io.Reader { return r }, "bytes": iotest.OneByteReader, "halves": iotest.HalfReader, "at the end": iotest.DataErrReader,
		} {
			r := &restamped{ReadCloser: io.NopCloser(pieces(strings.NewReader(in))), staged: staged}
			got, err := io.ReadAll(iotest.OneByteReader(r))
			require.NoError(t, err)
			require.Equal(t, want, string(got), name)
		}
	}
}

// TestAnEventIsNotHeldBack: the client gets each event as soon as it came.
func TestAnEventIsNotHeldBack(t *testing.T) {
	in, out := io.Pipe()
	r := &restamped{ReadCloser: in, staged: &llamatier.Answer{}}
	buf := make([]byte, 100)
	for _, event := range []string{"data: {\"content\":\"a\"}\n\n", "data: {\"content\":\"say \\\"hi\\\"\"}\n\n", ":\n\n"} {
		go func() { _, _ = io.WriteString(out, event) }()
		n, err := r.Read(buf)
		require.NoError(t, err)
		require.Equal(t, event, string(buf[:n]))
	}
	require.NoError(t, out.CloseWithError(io.ErrUnexpectedEOF))
	_, err := r.Read(buf)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
}
