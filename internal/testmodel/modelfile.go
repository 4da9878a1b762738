package testmodel

import "fmt"

// jinjaTemplate is ChatML in the spelling by which Ollama recognizes the template in GGUF
// files. The spelling must not change.
const jinjaTemplate = `{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}`

// Modelfile returns an Ollama Modelfile for the GGUF file at ggufPath: a ChatML
// template and stop words. Ollama takes a relative path from the Modelfile's
// own folder.
func Modelfile(ggufPath string) string {
	return fmt.Sprintf(`FROM %s
TEMPLATE """{{- range .Messages }}<|im_start|>{{ .Role }}
{{ .Content }}<|im_end|>
{{ end }}<|im_start|>assistant
"""
PARAMETER stop %s
PARAMETER stop %s
`, ggufPath, ImStart, ImEnd)
}
