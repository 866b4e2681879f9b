import eslint from '@eslint/js';
import prettier from 'eslint-config-prettier';
import tseslint from 'typescript-eslint';

export default tseslint.config(
  {
    ignores: [
      'labextension/lib/**',
      'labextension/lib-test/**',
      'jupyter_dtrain/**',
      'node_modules/**'
    ]
  },
  eslint.configs.recommended,
  {
    files: ['labextension/**/*.{ts,tsx}'],
    extends: [
      ...tseslint.configs.strictTypeChecked,
      ...tseslint.configs.stylisticTypeChecked
    ],
    languageOptions: {
      parserOptions: {
        project: ['./tsconfig.json', './labextension/test/tsconfig.json'],
        tsconfigRootDir: import.meta.dirname
      }
    },
    rules: {
      '@typescript-eslint/explicit-function-return-type': [
        'error',
        { allowExpressions: true }
      ],
      // JupyterLab's convention: interfaces start with an I.
      '@typescript-eslint/naming-convention': [
        'error',
        {
          selector: 'interface',
          format: ['PascalCase'],
          custom: { regex: '^I[A-Z]', match: true }
        }
      ],
      '@typescript-eslint/no-floating-promises': [
        'error',
        {
          allowForKnownSafeCalls: [
            { from: 'package', package: 'node:test', name: ['describe', 'it'] }
          ]
        }
      ],
      '@typescript-eslint/restrict-template-expressions': [
        'error',
        { allowNumber: true }
      ],
      // Lumino's signals bind: connect(this.method, this).
      '@typescript-eslint/unbound-method': 'off',
      eqeqeq: 'error',
      'max-lines': ['error', 350],
      'no-console': 'error'
    }
  },
  {
    files: ['labextension/src/protocol.ts'], // generated
    rules: { 'max-lines': 'off' }
  },
  prettier
);
