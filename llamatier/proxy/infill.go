package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
)

// Infill is all that decides, beside a request to /infill, which prompt llama-server makes of it.
type Infill struct {
	Tokens         map[string]int32 // identity.Model.Infill
	Batch, Predict int              // --batch-size, --predict
	Context        int              // tokens that a slot has room for
	SuffixFirst    bool             // --spm-infill
}

// infill returns the prompt that llama-server makes of a text with a gap, in format_prompt_infill: the end of
// other files, that of the text before the gap, and the beginning of the text behind it, as far as each has
// room. The prompt of the request stands before the gap, too. Nothing is kept of a private one.
func (h *Handler) infill(ctx context.Context, in members, private bool) ([]int32, error) {
	i := h.Infill
	begins, hasBegin := i.Tokens["pre"]
	goesOn, hasEnd := i.Tokens["suf"]
	gap, hasGap := i.Tokens["mid"]
	list, known := i.files(in["input_extra"])
	if !hasBegin || !hasEnd || !hasGap || !known {
		return nil, errNotUnderstood // llama-server refuses it
	}
	files, err1 := h.texts.list(ctx, list, private)
	before, err2 := h.engine.Tokenize(ctx, in["input_prefix"], false, false)
	behind, err3 := h.engine.Tokenize(ctx, in["input_suffix"], false, false)
	prompt, err4 := h.engine.Tokenize(ctx, stringOf(in["prompt"]), false, true)
	first, err5 := h.engine.Tokenize(ctx, "", true, true)
	if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
		return nil, err
	}
	files = files[max(0, len(files)-max(0, i.Context-i.Batch-2*i.Predict)):]
	before = before[max(0, len(before)-max(0, 3*(i.Batch/4))):]
	behind = behind[:min(len(behind), max(0, i.Batch/4-2-len(prompt)))]
	before, behind = slices.Concat([]int32{begins}, before, prompt), slices.Concat([]int32{goesOn}, behind)
	if i.SuffixFirst {
		before, behind = behind, before
	}
	return slices.Concat(files, first[:min(1, len(first))], before, behind, []int32{gap}), nil
}

// files returns other files of a request as a list of texts and tokens, and reports whether llama-server takes
// them.
func (i Infill) files(extra json.RawMessage) (list []any, known bool) {
	list = []any{}
	if repository, ok := i.Tokens["rep"]; ok {
		list = append(list, repository, "myproject\n")
	}
	separator, separates := i.Tokens["sep"]
	for _, file := range objects(extra) {
		name, named := file["filename"]
		if !named {
			name = encode("tmp")
		}
		if !isString(file["text"]) || !isString(name) {
			return nil, false
		}
		if separates {
			list = append(list, separator, stringOf(name)+"\n", file["text"])
		} else {
			list = append(list, "\n\n--- snippet ---\n\n", file["text"])
		}
	}
	if separates {
		list = append(list, separator, "filename\n")
	}
	return list, len(extra) == 0 || isList(extra)
}
