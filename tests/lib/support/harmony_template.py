"""A chat template in the manner of gpt-oss's: the same prompts, and the same refusals."""

from __future__ import annotations

HARMONY = r"""
{%- set thought = '<|channel|>analysis<|message|>' -%}
{%- set last = '<|channel|>final<|message|>' -%}
{%- macro type_of(schema) -%}
    {%- set null = ' | null' if schema.nullable else '' -%}
    {%- if schema.type is defined and schema.type is sequence and schema.type is not string -%}
        {{- schema.type | join(' | ') -}}
    {%- elif schema.type == 'array' -%}
        {%- set inner = schema['items'].type if 'items' in schema else 'any' -%}
        {{- ('number' if inner == 'integer' else inner) + '[]' + null -}}
    {%- elif schema.type == 'string' -%}
        {%- if schema.enum -%}{{- '"' + schema.enum | join('" | "') + '"' -}}
        {%- else -%}{{- 'string' + null -}}{%- endif -%}
    {%- elif schema.type in ('number', 'integer') -%}number
    {%- elif schema.type == 'boolean' -%}boolean
    {%- else -%}any{%- endif -%}
{%- endmacro -%}
{%- macro functions() -%}
    {{- '## functions\n\nnamespace functions {\n\n' -}}
    {%- for tool in tools -%}
        {%- set f = tool.function -%}
        {{- '// ' + f.description + '\ntype ' + f.name + ' = ' -}}
        {%- if f.parameters and f.parameters.properties -%}
            {{- '(_: {\n' -}}
            {%- for name, schema in f.parameters.properties.items() -%}
                {%- if schema.description -%}{{- '// ' + schema.description + '\n' -}}{%- endif -%}
                {{- name + ('' if name in f.parameters.required else '?') + ': ' -}}
                {{- type_of(schema) -}}
                {%- if schema.default is defined -%}
                    {{- ', // default: ' -}}
                    {{- schema.default | tojson if not schema.enum else '' + schema.default -}}
                {%- endif -%}
                {{- ',\n' -}}
            {%- endfor -%}
            {{- '}) => any;\n\n' -}}
        {%- else -%}{{- '() => any;\n\n' -}}{%- endif -%}
    {%- endfor -%}
    {{- '} // namespace functions' -}}
{%- endmacro -%}
{{- '<|start|>system<|message|>' -}}
{{- model_identity or 'You are ChatGPT, a large language model trained by OpenAI.' -}}
{{- '\nKnowledge cutoff: 2024-06\nCurrent date: ' + strftime_now('%Y-%m-%d') -}}
{{- '\n\nReasoning: ' + (reasoning_effort or 'medium') + '\n\n' -}}
{%- for name in builtin_tools or [] -%}
    {{- ('# Tools\n\n' if loop.first else '') + '## ' + name + '\n\n' -}}
{%- endfor -%}
{{- '# Valid channels: analysis, commentary, final. Channel must be included for every message.' -}}
{%- if tools -%}
    {{- "\nCalls to these tools must go to the commentary channel: 'functions'." -}}
{%- endif -%}
{{- '<|end|>' -}}
{%- set turns = messages -%}
{%- set rules = '' -%}
{%- if messages[0].role in ('system', 'developer') -%}
    {%- set rules = messages[0].content -%}
    {%- set turns = messages[1:] -%}
{%- endif -%}
{%- if rules or tools -%}
    {{- '<|start|>developer<|message|>' -}}
    {%- if rules -%}{{- '# Instructions\n\n' + rules + '\n\n' -}}{%- endif -%}
    {%- if tools -%}{{- '# Tools\n\n' + functions() -}}{%- endif -%}
    {{- '<|end|>' -}}
{%- endif -%}
{%- set ns = namespace(name=none) -%}
{%- for m in turns -%}
    {%- if m.role == 'assistant' -%}
        {%- for text in (m.content or '', m.thinking or '') -%}
            {%- if thought in text or last in text -%}
                {{- raise_exception('channels belong into fields of their own') -}}
            {%- endif -%}
        {%- endfor -%}
        {%- if 'tool_calls' in m -%}
            {%- set later = namespace(answers=false) -%}
            {%- for other in turns[loop.index:] -%}
                {%- if other.role == 'assistant' and 'tool_calls' not in other -%}
                    {%- set later.answers = true -%}
                {%- endif -%}
            {%- endfor -%}
            {%- if m.content and m.thinking -%}
                {{- raise_exception('content or thinking, not both') -}}
            {%- endif -%}
            {%- if (m.content or m.thinking) and not later.answers -%}
                {{- '<|start|>assistant' + thought + (m.content or m.thinking) + '<|end|>' -}}
            {%- endif -%}
            {%- set call = m.tool_calls[0].function or m.tool_calls[0] -%}
            {{- '<|start|>assistant to=functions.' + call.name + '<|channel|>commentary json' -}}
            {{- '<|message|>' + call.arguments | tojson + '<|call|>' -}}
            {%- set ns.name = call.name -%}
        {%- else -%}
            {%- if loop.last and not add_generation_prompt -%}
                {%- if 'thinking' in m -%}
                    {{- '<|start|>assistant' + thought + m.thinking + '<|end|>' -}}
                {%- endif -%}
                {{- '<|start|>assistant' + last + m.content + '<|return|>' -}}
            {%- else -%}
                {{- '<|start|>assistant' + last + m.content + '<|end|>' -}}
            {%- endif -%}
            {%- set ns.name = none -%}
        {%- endif -%}
    {%- elif m.role == 'tool' -%}
        {%- if ns.name is none -%}{{- raise_exception('a result without a call') -}}{%- endif -%}
        {{- '<|start|>functions.' + ns.name + ' to=assistant<|channel|>commentary<|message|>' -}}
        {{- m.content | tojson + '<|end|>' -}}
    {%- elif m.role == 'user' -%}
        {{- '<|start|>user<|message|>' + m.content + '<|end|>' -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|start|>assistant' -}}{%- endif -%}
"""
