package proxy

import (
	"bytes"
	"maps"
	"net/http"
	"strconv"

	"github.com/kvtier/kvtier/llamatier"
)

// llama-server computes several answers to one prompt in as many slots, which it chooses when all are free. So the
// request passes. Before it does, its prompt is restored, and computed, in a slot that llama-server finds by that.

// readAnswers reads how many answers a request asks for. It returns an error where these are several, and where the
// prompt cannot be computed before.
func (p *prompt) readAnswers() (err error) {
	n, other := p.in["n_cmpl"], p.in["n"]
	if !set(n, "1") {
		n, other = other, n
	}
	if p.answers = 1; !set(n, "1") {
		return nil
	}
	p.answers, err = strconv.Atoi(string(bytes.TrimSpace(n)))
	if err != nil || p.answers < 1 || other != nil || p.api.convert != nil || p.Private || p.AtOnce {
		return errNotUnderstood
	}
	p.Others = maps.Clone(p.in)
	for _, name := range []string{"prompt", "messages", "tools", "n", "n_cmpl", formatMember} {
		delete(p.Others, name)
	}
	return nil
}

// serveSeveral serves a request for several answers, whose prompt has a turn. The prompt counts as computed by the
// request. opening is that of its stream, which may have begun; nil without.
func (h *Handler) serveSeveral(w http.ResponseWriter, r *http.Request, p *prompt, opening *opening, turn *llamatier.Turn, t *llamatier.Tier) {
	heard := &end{turn: turn, staged: t.Prefill(r.Context(), turn), api: p.api}
	if r.Context().Err() != nil {
		panic(http.ErrAbortHandler) // the client is gone
	}
	if opening != nil && opening.open {
		w, heard.opening = opening, opening
	}
	h.passOf(w, r, p.Tenant, heard.passes)
}
