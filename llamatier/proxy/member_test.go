package proxy

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFormsOfChats: no number of one reaches llama-server with a prompt, whether or not the request has a slot; all
// else passes as it is.
func TestFormsOfChats(t *testing.T) {
	const most = 64 << 10
	l, h, _ := letter(t, 2, Ours{})
	h.bodies.one = most
	urls := []string{web(t, h), before(t, listen(t, l.ServeHTTP), true)} // with and without a Tier
	got := func() (all []string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		all, l.got = l.got, nil
		return all
	}
	for _, path := range []string{"/completion", "/completions", "/v1/completions", "/infill"} {
		for _, url := range urls {
			for _, prompt := range []string{`"a"`, `["a","b"]`} { // the second one passes
				for body, last := range map[string]string{
					`{"chat_format":99,"prompt":P}`:                    `,"chat_format":0}`,
					`{"prompt":P,"chat_format": -1 }`:                  `,"chat_format":0}`,
					`{"prompt":P,"chat_format":"x","chat_format":1.5}`: `,"chat_format":0}`,
					`{"prompt":P,"chat_form\u0061t":7}` + "\n":         `,"chat_format":0}` + "\n",
					`{"prompt":P,"chat_format":"x"}`:                   ``,
					`{"prompt":P,"chat_format":null}`:                  ``,
					`{"prompt":P,"chat_format":2,"chat_format":true}`:  ``,
					`{"prompt":P,"more":{"chat_format":99}}`:           ``,
				} {
					body = strings.Replace(body, "P", prompt, 1)
					status, _ := post(t, url+path, body)
					require.Equal(t, http.StatusOK, status)
					end := strings.LastIndexByte(body, '}')
					want := body
					if last != "" {
						want = body[:end] + last
					}
					all := got()
					require.Len(t, all, 1)
					require.Equal(t, want, strings.NewReplacer(`,"id_slot":0`, "", `,"id_slot":1`, "").Replace(all[0]))
				}
			}
		}
		for _, body := range []string{
			"\ufeff" + `{"prompt":"a","chat_format":99}`, `{"chat_format":99,"prompt":"` + strings.Repeat("x", most) + `"}`, `{"prompt":"a","chat_format":99`,
		} {
			status, answer := post(t, urls[0]+path, body)
			require.Equal(t, http.StatusNotImplemented, status)
			require.Contains(t, answer, "kvtier cannot read the chat_format of this request")
			require.Empty(t, got())
		}
		_, _ = post(t, urls[0]+path, `{"chat_format":99}`+"\x00 }") // llama-server reads it up to the zero
		require.Equal(t, []string{`{"chat_format":99,"chat_format":0}` + "\x00 }"}, got())
	}
	for _, path := range []string{"/v1/chat/completions", "/v1/responses", "/v1/messages", "/embedding"} { // llama-server has its own
		body := `{"messages":[],"chat_format":99}`
		_, _ = post(t, urls[1]+path, body)
		require.Equal(t, []string{body}, got())
	}
}
